"""Two ranks compute what one rank computes, and one rank resumes from the checkpoint of two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from arl_lora.keys import LoraConfig
from rank_child import (
    MOVING,
    NUM_STEPS,
    OPTIONS,
    make_stepper,
    moving_stepper,
    train,
    train_critic,
    train_experts,
    train_lora,
    train_preset,
    train_taught,
    train_trees,
)
from trainer_samples import save_recurrent_model

from agentgym_rl.config import preset_names
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer.checkpoint import load_checkpoint
from tests.e2e.forked import run_all
from tests.kit.moe import save_moe

CHILD = Path(__file__).with_name("rank_child.py")


@pytest.fixture(scope="module")
def two_ranks(tiny_model, tmp_path_factory) -> Path:
    """The folder two finished ranks left behind."""
    out = tmp_path_factory.mktemp("ranks")
    save_recurrent_model(out / "recurrent")
    run_two(tiny_model, out)
    return out


def run_two(model_dir: Path, out: Path, *more: str) -> None:
    run_all(CHILD, *((model_dir, out, rank, *more) for rank in (0, 1)))


@pytest.mark.slow
def test_two_ranks_of_experts_equal_one(tmp_path, world):
    model_dir = save_moe(tmp_path / "moe")
    run_two(model_dir, tmp_path, "experts")
    expected = train_experts(model_dir, world)
    assert expected[1]["grad_norm"] > 0
    for rank in (0, 1):
        found = json.loads((tmp_path / f"experts-{rank}.json").read_text())
        for mine, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_two_ranks_of_muon_with_a_moving_reference_equal_one_that_resumes_what_they_saved(
    tiny_model, tmp_path, world
):
    run_two(tiny_model, tmp_path, "moving")
    stepper = moving_stepper(tiny_model, world)
    expected = [train(stepper, step) for step in range(NUM_STEPS)]
    assert expected[2]["layer/1/update_norm"] > 0 < expected[2]["policy/kl_reference"]
    following = train(stepper, NUM_STEPS)
    for name in MOVING:
        for rank in (0, 1):
            found = json.loads((tmp_path / f"moving-{rank}.json").read_text())[name]
            for mine, theirs in zip(expected, found, strict=True):
                assert theirs == pytest.approx(mine, rel=1e-6, abs=1e-9)
        resumed = moving_stepper(tiny_model, world)
        resumed.restore(tmp_path / name / f"step-{NUM_STEPS}")
        assert train(resumed, NUM_STEPS) == pytest.approx(following, rel=1e-6)


@pytest.mark.slow
def test_two_ranks_equal_one(tiny_model, two_ranks, world):
    stepper = make_stepper(tiny_model, world)
    expected = [train(stepper, step) for step in range(NUM_STEPS)]
    for rank in (0, 1):
        found = json.loads((two_ranks / f"metrics-{rank}.json").read_text())
        for mine, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-7, abs=1e-9)
    state = torch.load(two_ranks / "state.pt")
    for name, tensor in stepper.policy.full_state().items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
def test_two_ranks_equal_one_with_any_preset(tiny_model, two_ranks, world, name):
    expected = train_preset(tiny_model, world, name)
    for rank in (0, 1):
        found = json.loads((two_ranks / f"presets-{rank}.json").read_text())[name]
        for mine, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_two_ranks_equal_one_row_by_row_with_shared_blocks(two_ranks, world):
    stepper = make_stepper(two_ranks / "recurrent", world)
    assert not stepper.policy.packs
    expected = [train(stepper, step) for step in range(2)]
    assert expected[1]["grad_norm"] > 0
    for rank in (0, 1):
        found = json.loads((two_ranks / f"recurrent-{rank}.json").read_text())
        for mine, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_two_ranks_with_a_teacher_equal_one(tiny_model, two_ranks, world):
    expected = train_taught(tiny_model, two_ranks / "recurrent", world)
    assert abs(expected[1]["teacher/kl"]) > 0.1
    for rank in (0, 1):
        found = json.loads((two_ranks / f"taught-{rank}.json").read_text())
        for mine, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-7, abs=1e-9)


@pytest.fixture(scope="module")
def one_rank_without_options(tiny_model, world) -> list[dict[str, float]]:
    return train_critic(tiny_model, world, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_two_ranks_with_an_option_equal_one_without(one_rank_without_options, two_ranks, name):
    for rank in (0, 1):
        found = json.loads((two_ranks / f"options-{rank}.json").read_text())[name]
        for mine, theirs in zip(one_rank_without_options, found, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_two_ranks_that_share_beginnings_equal_one_that_does_not(tiny_model, two_ranks, world):
    expected = train_trees(tiny_model, world, share=False)
    for rank in (0, 1):
        found = json.loads((two_ranks / f"trees-{rank}.json").read_text())
        for mine, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-8, abs=1e-10)


@pytest.mark.slow
def test_two_ranks_in_bfloat16_equal_one_as_far_as_it_goes(tiny_model, two_ranks, world):
    expected = train_critic(tiny_model, world, {}, bfloat16=True)
    for rank in (0, 1):
        found = json.loads((two_ranks / f"options-{rank}.json").read_text())["bfloat16"]
        for mine, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(mine, rel=0.1, abs=0.01)


@pytest.mark.slow
def test_one_rank_resumes_what_two_saved(tiny_model, two_ranks, world):
    straight, resumed = make_stepper(tiny_model, world), make_stepper(tiny_model, world)
    for step in range(NUM_STEPS):
        train(straight, step)
    path = two_ranks / "checkpoints" / f"step-{NUM_STEPS}"
    manifest = load_checkpoint(path, resumed.policy, resumed.optimizer)
    assert (manifest.step, manifest.num_ranks) == (NUM_STEPS, 2)
    saved = torch.load(two_ranks / "state.pt")
    assert all(torch.equal(t, saved[n]) for n, t in resumed.policy.full_state().items())
    assert train(resumed, NUM_STEPS) == pytest.approx(train(straight, NUM_STEPS), rel=1e-6)


@pytest.mark.slow
def test_two_ranks_with_an_adapter_equal_one(tiny_model, two_ranks, world):
    expected, stepper = train_lora(tiny_model, world)
    for rank in (0, 1):
        found = json.loads((two_ranks / f"lora-{rank}.json").read_text())
        for mine, theirs in zip(expected, found, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-6, abs=1e-9)
    adapter = torch.load(two_ranks / "adapter.pt")
    for name, tensor in stepper.policy.trained_state().items():
        torch.testing.assert_close(adapter[name], tensor, rtol=0, atol=1e-7)
    _, resumed = train_lora(tiny_model, world)
    load_checkpoint(two_ranks / "lora" / "step-2", resumed.policy, resumed.optimizer)
    assert all(torch.equal(t, adapter[n]) for n, t in resumed.policy.trained_state().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lora"), [("all", None), ("adapter", LoraConfig(rank=4, alpha=8))]
)
def test_two_ranks_save_what_batches_without_signal_left(tiny_model, two_ranks, world, name, lora):
    expected, resumed = (make_stepper(tiny_model, world, lora=lora) for _ in range(2))
    train(expected, 1)
    load_checkpoint(two_ranks / f"idle-{name}" / "step-3", resumed.policy, resumed.optimizer)
    found = resumed.policy.trained_state()
    for key, tensor in expected.policy.trained_state().items():
        torch.testing.assert_close(found[key], tensor, rtol=0, atol=1e-7)
    assert {float(its["step"]) for its in resumed.optimizer.state.values()} == {2.0}


@pytest.mark.slow
def test_a_rank_that_is_alone_gives_up(tmp_path):
    code = (
        "from agentgym_rl.trainer.world import join_world\n"
        f"with join_world(rank=0, size=2, rendezvous='file://{tmp_path}/meet', timeout_s=1): pass"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"{TrainerError.__name__}: trainer rank 0 of 2 cannot meet the others" in child.stderr


def test_a_world_of_one_needs_no_rendezvous(world):
    assert world.gather("a") == ["a"]
    assert world.maxima([3, 1]) == [3, 1]
