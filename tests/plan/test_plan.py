"""`arl plan` as typed: rates, search, files."""

import asyncio
import json
import re

import pytest
from arl_plan.command import PlanOptions, plan
from arl_plan.rates import HardwareRates, load_rates, rates_of

from agentgym_rl.cli import main as cli
from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.gym import make_sandbox
from tests.kit.cases import cases

RATES = """
[engine]
step_s = 0.01
step_s_per_request = 0.001
[trainer]
forward_s_per_token = 1e-4
train_s_per_token = 3e-4
[lengths]
prompt_tokens = 20
reply_tokens = 20
"""
SMALL = ["--steps=4", "--rollout.groups_per_batch=2", "--rollout.group_size=2"]


@pytest.fixture
def arl(capsys, tmp_path):
    """(exit code, stdout, stderr) of `arl plan` with the rates above in the file `rates`."""
    rates = tmp_path / "rates.toml"
    rates.write_text(RATES)

    def arl(*argv, known=True):
        with pytest.raises(SystemExit) as end:
            cli.main(["plan", *SMALL, *([f"--rates={rates}"] if known else []), *argv])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return arl


def test_a_plan_fits_the_terminal_and_recommends(arl, tmp_path):
    picture, kept = tmp_path / "plan.png", tmp_path / "kept.toml"
    code, out, _ = arl(f"--plot={picture}", f"--write-rates={kept}", "--gpus=3")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "episodes trained" in out
    assert "Recommended" in out or "Nothing that was tried" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert load_rates(kept).engine.step_s == 0.01


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sandboxes_of_an_environment_are_measured(arl):
    if not asyncio.run(make_sandbox("local").probe()).capabilities.images:
        pytest.skip("the local sandbox has no images on this machine")
    flags = ("--env.id=harbor:bugs", "--sandbox.options.slots=3", "--no-search")
    code, out, err = arl("--json", *flags)
    assert code == 0
    assert "measuring the sandboxes of harbor:bugs" in err
    found = json.loads(out)
    measured, predicted = found["rates"]["sandboxes"], found["prediction"]
    assert (measured["at_once"], measured["memory_mb"]) == (3, 1024)
    assert measured["machine_mb"] > 1024
    assert 0 < measured["start_s"] < measured["verify_s"]
    assert predicted["episode_s"] > predicted["tests_s"] > 0
    assert found["rates"]["lengths"]["tool_s"] == 0, "the file has lengths of its own"
    code, out, _ = arl(*flags)
    assert "in line for sandboxes" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_plan_as_json(arl):
    code, out, _ = arl("--json", "--no-search", "--rollout.max_staleness=0")
    found = json.loads(out)
    assert code == 0
    assert found["prediction"]["staleness_max"] == 0
    assert found["tried"] == []
    assert found["rates"]["trainer"]["train_s_per_token"] == 3e-4


def test_without_rates_it_says_where_they_may_come_from(arl):
    code, _, err = arl("--engine.type=vllm", known=False)
    assert code == 2
    assert "--run RUN" in err
    assert "--gpu NAME" in err


@cases(
    "flags, said",
    [
        (["--gpu=X9"], "GPU 'X9' is not known (known: A100, "),
        (["--gpu=X9"], "--rates FILE"),
        (["--memory", "--model=no/where", "--gpu=x"], "B200); give one of these"),
        (
            ["--memory", "--model=no/where", "--gpu=h2000"],
            "is not known; did you mean H200?",
        ),
        (["--gpu=h100"], "--parameters"),
        (["--gpu=H100"], "--parameters"),
        (["--gpu=H100", "--parameters=500e9"], "raise engine.tensor_parallel_size"),
        (["--cores=0"], "--cores 0"),
        (["--gpus=1"], "too few"),
        (["--run=nowhere"], "nowhere"),
        (["--engine.type=openai"], "arl eval"),
    ],
)
def test_mistakes_are_explained(arl, flags, said):
    code, _, err = arl(*flags)
    assert code == 2
    assert said in err


def test_a_model_of_the_hub_is_planned_without_its_files(arl):
    code, out, _ = arl("--model=owner/name", "--engine.max_model_len=8192")
    assert code == 0
    assert "episodes trained" in out


def test_rates_of_a_gpu():
    small = rates_of(HardwareRates(gpu="H100", parameters=1.5e9))
    large = rates_of(HardwareRates(gpu="H100", parameters=7.6e9))
    assert small.engine.step_s < large.engine.step_s
    assert small.trainer.train_s_per_token < large.trainer.train_s_per_token
    assert (small.engine.kv_tokens or 0) > (large.engine.kv_tokens or 0)


def test_stages_give_memory_and_requests_at_once_but_no_faster_token():
    hardware = HardwareRates(gpu="H100", parameters=7.6e9)
    one, two = (rates_of(hardware, stages=stages).engine for stages in (1, 2))
    wide = rates_of(hardware, tensor_parallel=2).engine
    assert two.kv_tokens == wide.kv_tokens
    assert (two.kv_tokens or 0) > 2 * (one.kv_tokens or 0)
    assert two.step_s_per_request == wide.step_s_per_request == one.step_s_per_request / 2
    assert wide.step_s < one.step_s < two.step_s


def test_what_a_file_says_counts_over_what_is_estimated(arl):
    code, out, _ = arl("--json", "--no-search", "--gpu=H100", "--parameters=1.5e9")
    found = json.loads(out)["rates"]
    assert code == 0
    assert found["engine"]["step_s"] == 0.01
    assert found["engine"]["kv_tokens"] > 1_000_000


def test_a_plan_has_the_memory_of_the_trainer(arl):
    _, out, _ = arl("--no-search", "--trainer.optimizer=muon")
    assert re.search(r"state of the optimizer +3\.81 MB\n", out)
    big = ("--gpu=H100", "--parameters=7.6e9", "--no-search")
    _, out, _ = arl(*big)
    assert re.search(
        r"each rank +122 GB, and its activations\n +note: that does not fit 80 GB", out
    )
    assert "not fit" not in arl(*big, "--trainer.num_ranks=2")[1]
    assert "not fit" not in arl(*big, "--trainer.cpu_offload=true")[1]
    found = json.loads(arl("--json", *big)[1])["trainer_memory_bytes"]
    assert (found["optimizer"], found["rank"]) == (8 * 7.6e9, 16 * 7.6e9)
    assert "memory is not known" in arl("--no-search", "--model=owner/name")[1]


def test_the_search_splits_no_trainer_below_its_memory(arl):
    """A trainer of 122 GB needs two GPUs of 80 GB."""
    big = ("--gpu=H100", "--parameters=7.6e9", "--gpus=8", "--json")
    for keys, expected in (((), [4, 3, 2]), (("--trainer.cpu_offload=true",), [4, 3, 2, 1])):
        tried = json.loads(arl(*big, *keys)[1])["tried"]
        found = [each["trainer.num_ranks"] for each in tried if each["axis"] == "split"]
        assert found == expected
    assert "an engine of 1 and a trainer of 2, with" in arl(*big[:2], "--gpus=2")[2]


def test_rates_of_a_run_need_the_run(tmp_path):
    file = tmp_path / "rates.toml"
    file.write_text('lengths_of = "run"')
    with pytest.raises(ConfigError, match="calibrated_on"):
        load_rates(file)


def test_turns_on_shared_devices_are_not_planned():
    config = load_config(None, {"cluster.colocated": True})
    with pytest.raises(ConfigError, match="on devices of their own"):
        plan(config, PlanOptions())
