"""What the benchmark of the trainer compares is the same work."""

import pytest

from agentgym_rl.trainer import join_world
from benchmarks import _common, _runs
from benchmarks.trainer_loops import packing, ranks
from tests.kit.cases import cases


@pytest.mark.slow
def test_padded_micro_batches_have_the_loss_of_packed_ones(tmp_path):
    _common.qwen3(tmp_path / "model", hidden=64, layers=1, vocab=packing.VOCAB)
    lengths = packing.Lengths("few", [40, 9, 23, 16, 31], budget=80)
    with join_world() as world:
        packed, padded = packing.compare(tmp_path / "model", lengths, world, rounds=1)
    assert padded["loss"] == pytest.approx(packed["loss"], rel=1e-5)
    assert (packed["padding"], padded["padding"]) == (0, pytest.approx(1 - 119 / 157, abs=1e-4))
    assert (packed["micro_batches"], padded["micro_batches"]) == (2, 3)


@cases("groups, members, count", [(8, 8, 4), (64, 8, 8), (64, 8, 32), (32, 16, 64)])
def test_ranks_are_busy(groups, members, count):
    """Whole groups dealt once over the batch gave .25, .50, .25 and .11."""
    found = ranks.busy(groups, members, count)
    assert found["busy"] >= 0.95
    assert found["busy_of_computed"] >= 0.95
    assert ranks.busy(2, 2, 8)["busy"] < 0.4, "there are fewer episodes than ranks"


@pytest.mark.slow
def test_the_time_of_training_is_within_the_run():
    sizes = ["--steps=2", "--rollout.group_size=2", "--rollout.groups_per_batch=2"]
    run = _runs.train("two batches", ["--env=math", "--agent=react", "--eval.num_tasks=0", *sizes])
    assert 0 < run.training_s < run.seconds
    assert len(run.steps) == 2
