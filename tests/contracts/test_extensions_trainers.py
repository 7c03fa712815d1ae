"""A backend of the trainer that another package brings: plain copies of the model
(tests/kit/copies.py), which have to learn as FSDP2 does."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
from arl_scale.allocation import settings
from safetensors.torch import load_file

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, extensions
from agentgym_rl.trainer import join_world, make_stepper
from tests.e2e import forked
from tests.kit import copies
from tests.kit.extension import install

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import trainers_child  # noqa: E402
from trainer_samples import save_tiny_model  # noqa: E402

KIND = """
from arl_scale.trainers import TrainerKind

KIND = TrainerKind("copies:load", "dt")
"""
TINY = (
    *("--cluster.allocation=embedded:d1+copies:d{}", "--rollout.groups_per_batch=2"),
    *("--rollout.group_size=2", "--eval.num_tasks=0", "--logging.progress=none"),
    *("--logging.plot=false", "--trainer.checkpoint_every=2"),
    *("--rollout.max_staleness=0", "--algo.entropy_coef=0.01"),  # so that every episode trains
)


@pytest.fixture
def site(tmp_path) -> Path:
    sources = {"copies": Path(copies.__file__).read_text(), "copies_kind": KIND}
    return install(tmp_path / "site", sources, {"trainers": {"copies": "copies_kind:KIND"}})


@pytest.fixture
def known(site, monkeypatch):
    monkeypatch.syspath_prepend(site)
    extensions.forget_entry_points()
    yield
    extensions.forget_entry_points()


@pytest.fixture
def arl(site):
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return partial(forked.arl, env={**os.environ, "PYTHONPATH": path})


def same(found: list[list[dict[str, float]]]) -> None:
    fsdp, fsdp_resumed, theirs, resumed = found
    assert min(each["grad_norm"] for each in fsdp) > 0
    for mine, other in zip(fsdp, theirs, strict=True):
        shared = {name: other[name] for name in mine if name in other}
        assert {"loss", "policy/ratio_max", "policy/entropy"} <= shared.keys()
        assert shared == pytest.approx({n: mine[n] for n in shared}, rel=1e-5, abs=1e-6)
    assert fsdp_resumed == fsdp[2:4]
    assert resumed == theirs[2:4]


def test_one_rank_learns_as_fsdp_does(tmp_path):
    model_dir = save_tiny_model(tmp_path / "model")
    with join_world() as alone:
        same(trainers_child.run(model_dir, tmp_path, alone))


@pytest.mark.slow
def test_two_ranks_learn_as_fsdp_does(tmp_path):
    model_dir = save_tiny_model(tmp_path / "model")
    child = HERE / "trainers_child.py"
    forked.run_all(child, *((model_dir, tmp_path, rank) for rank in (0, 1)))
    for rank in (0, 1):
        same(json.loads((tmp_path / f"metrics-{rank}.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_run_with_it_trains_publishes_resumes_and_exports(arl, tmp_path, num_ranks):
    run, words = tmp_path / "run", [word.format(num_ranks) for word in TINY]
    done = arl("train", "--json", f"--run={run}", "--steps=3", *words)
    assert done.returncode == 0, done.stderr
    assert (run / "checkpoints" / "step-3" / "whole.pt").exists()
    before = load_file(run / "export" / "model.safetensors")
    done = arl("train", "--json", "--resume", str(run), "--steps=5")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "loss" in row]
    assert [row["step"] for row in rows] == list(range(5))
    gaps = [row["mismatch/mean_abs/staleness_0"] for row in rows]
    assert max(gaps) < 1e-5  # the engine has what the trainer has
    after = load_file(run / "export" / "model.safetensors")
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in before)
    assert 'backend = "copies"' in (run / "config.toml").read_text()


def test_the_allocation_knows_its_dimensions(known):
    found = settings("embedded:d1+copies:d2t2")
    assert (found["trainer.backend"], found["trainer.num_ranks"]) == ("copies", 4)
    assert found["trainer.mesh"] == "t2"
    with pytest.raises(ConfigError, match=r"no dimension 'e' of copies; allowed: d .*, t "):
        settings("embedded:d1+copies:d2e2")
    with pytest.raises(ConfigError, match="the policy's ranks, which have it, are copies"):
        settings("embedded:d1+copies:d2|fsdp[critic]:d2")


def test_an_unknown_one_is_refused_and_the_rest_of_the_package_keeps_to_fsdp(known, tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.backend.*'copies', 'fsdp' or 'megatron'"):
        load_config(overrides={"trainer.backend": "deepspeed"})
    config = load_config(overrides={"trainer.backend": "copies"})
    with join_world() as alone, pytest.raises(ConfigError, match="work in `arl train` alone"):
        make_stepper(config, alone, tmp_path)
