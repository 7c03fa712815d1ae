"""Megatron-Core learns as FSDP2 does, on a CPU: one rank, two with other rows, two that divide the
matrices. Only where it is installed: `pip install megatron-core`."""

import json
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from agentgym_rl.core import ConfigError
from agentgym_rl.trainer import join_world, make_stepper
from tests.e2e import forked

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.filterwarnings("ignore:.*tp_group:DeprecationWarning")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import megatron_child  # noqa: E402
from arl_megatron.trainer import load  # noqa: E402
from trainer_samples import save_tiny_model  # noqa: E402

TINY = (
    *("--rollout.groups_per_batch=2", "--rollout.group_size=2", "--eval.num_tasks=0"),
    *("--logging.progress=none", "--logging.plot=false", "--trainer.checkpoint_every=2"),
    *("--rollout.max_staleness=0", "--algo.entropy_coef=0.01"),  # so that every episode trains
)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("size", "unit"), [(1, 1), (2, 1), (2, 2)])
def test_it_learns_as_fsdp_does_and_any_ranks_go_on(tmp_path, size, unit, tied):
    model_dir = save_tiny_model(tmp_path / "model", tied=tied)
    child = HERE / "megatron_child.py"
    forked.run_all(child, *((model_dir, tmp_path, rank, size, unit) for rank in range(size)))
    with join_world() as world:
        fsdp = make_stepper(megatron_child.config(), world, model_dir)
        expected = [megatron_child.train(fsdp, step) for step in range(4)]
        resumed = load(megatron_child.config(), world, model_dir)
        assert resumed.restore(tmp_path / "step-2").step == 2
        following = [megatron_child.train(resumed, step) for step in (2, 3)]
    for rank in range(size):
        found = json.loads((tmp_path / f"metrics-{rank}.json").read_text())
        for mine, theirs, again in zip(expected, found, [*found[:2], *following], strict=True):
            assert mine["grad_norm"] > 0
            assert theirs["loss"] == pytest.approx(mine["loss"], abs=1e-6)
            assert again["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
            shared = {name: theirs[name] for name in mine if name in theirs}
            assert shared == pytest.approx({n: mine[n] for n in shared}, rel=1e-4, abs=1e-6)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export").state_dict()
    for name, tensor in fsdp.policy.full_state().items():
        assert float((exported[name] - tensor).abs().mean()) < 1e-5


@pytest.mark.slow
def test_a_run_divides_matrices_publishes_and_goes_on_with_one_rank(tmp_path):
    run = tmp_path / "run"
    where = "--cluster.allocation=embedded:d1+megatron:d1t2"
    done = forked.arl("train", f"--run={run}", "--steps=3", where, *TINY)
    assert done.returncode == 0, done.stderr
    one = "--cluster.allocation=embedded:d1+megatron:d1"
    done = forked.arl("train", "--resume", str(run), "--steps=5", one)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "loss" in row]
    assert [row["step"] for row in rows] == list(range(5))
    assert max(row["mismatch/mean_abs/staleness_0"] for row in rows) < 1e-5


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"lora.rank": 4}, "adapters"),
        ({"engine.dtype": "bfloat16"}, "bfloat16"),
        ({"trainer.compile": True}, r"trainer\.compile"),
    ],
)
def test_what_it_would_ignore_is_refused(tmp_path, keys, says):
    from agentgym_rl.config import load_config

    config = load_config(overrides={"trainer.backend": "megatron", **keys})
    with join_world() as world, pytest.raises(ConfigError, match=f"has no {says}"):
        load(config, world, tmp_path)
