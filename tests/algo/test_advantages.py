from __future__ import annotations

import pytest
import torch

from agentgym_rl.algo.advantages import episode_advantages, shuffled


def test_equal_rewards_give_exactly_zero():
    # 0.1 three times has a mean that is not 0.1 in floating point.
    for baseline in ("mean", "leave_one_out"):
        for scale in ("none", "group_std", "batch_std"):
            found = episode_advantages([0.1, 0.1, 0.1], "aaa", baseline=baseline, scale=scale)
            assert found.tolist() == [0, 0, 0]
    assert episode_advantages([0.3] * 3, "aab", baseline="none", scale="batch_std").sum() == 0


def test_groups_are_found_by_id_not_by_order():
    mixed = episode_advantages([0, 0, 1, 1], ["x", "y", "x", "y"])
    assert mixed.tolist() == pytest.approx([-0.7071058] * 2 + [0.7071058] * 2, abs=1e-6)


def test_a_group_of_one_has_no_advantage():
    assert episode_advantages([5.0, 1.0], ["x", "y"], scale="none").tolist() == [0, 0]


def test_an_empty_batch_has_no_advantages():
    assert len(episode_advantages([], [])) == 0


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match="2 rewards but 1 group"):
        episode_advantages([1, 2], ["a"])
    with pytest.raises(ValueError, match="no meaning"):
        episode_advantages([1, 2], "ab", baseline="none", scale="group_std")


def test_shuffling_permutes_reproducibly():
    values = torch.arange(50, dtype=torch.float64)
    found = shuffled(values, seed=3, step=4)
    assert found.sort().values.equal(values)
    assert not found.equal(values)
    assert found.equal(shuffled(values, seed=3, step=4))
    assert not found.equal(shuffled(values, seed=3, step=5))
