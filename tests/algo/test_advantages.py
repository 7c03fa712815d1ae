from __future__ import annotations

import pytest
import torch
from arl_objectives.small_terms import shuffled

from agentgym_rl.algo import Moments, episode_advantages, moments_of
from agentgym_rl.algo.advantages import whitened
from agentgym_rl.config import StdConfig, WhitenConfig
from tests.kit.cases import cases


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


def advantages(rewards: list[float], groups: str, **how) -> list[float]:
    return episode_advantages(rewards, list(groups), **how).tolist()


def test_the_deviation_of_the_others():
    """Without the first one 0 and 1, without the second 1 and 1: that one is not divided."""
    found = advantages([1, 0, 1], "aaa", baseline="leave_one_out", scale="leave_one_out_std")
    std = 0.5**0.5 + 1e-6
    assert found == pytest.approx([0.5 / std, -1, 0.5 / std])
    assert (
        advantages([0.1] * 3, "aaa", baseline="leave_one_out", scale="leave_one_out_std") == [0] * 3
    )


def test_a_deviation_of_centred_rewards_is_about_zero():
    of = StdConfig(of="centred", eps=0)
    found = advantages([1, 3, 10, 10], "aabb", scale="batch_std", std=of)
    assert found == pytest.approx([-(1.5**0.5), 1.5**0.5, 0, 0])  # sqrt(2 / 3)
    biased = StdConfig(unbiased=False, eps=0)
    assert advantages([1, 3], "aa", std=biased) == pytest.approx([-1, 1])


def test_long_episodes_count_more_in_a_weighted_mean():
    how = {"baseline": "length_weighted", "scale": "none", "lengths": [1, 3, 2]}
    assert advantages([1, 0, 5], "aab", **how) == pytest.approx([0.75, -0.25, 0])
    with pytest.raises(ValueError, match="3 rewards but 0 lengths"):
        advantages([1, 0, 5], "aab", baseline="length_weighted")


def test_few_rewards_weigh_more():
    assert advantages([1, 0, 0, 0], "aabb", scale="nonzero_share") == pytest.approx([2, -2, 0, 0])
    assert advantages([0, 0], "aa", scale="nonzero_share") == [0, 0]


@cases(
    "whiten, divisor",
    [
        ({}, 2**0.5 + 1e-6),
        ({"unbiased": False}, 1 + 1e-6),
        ({"eps": 7, "eps_in": "variance"}, 3),
        ({"eps": 9, "eps_in": "floor"}, 3),
        ({"eps": 1, "eps_in": "floor"}, 2**0.5),
    ],
)
def test_whitening_divides_by_the_deviation_of_all(whiten, divisor):
    numbers = torch.tensor([2.0, 4.0], dtype=torch.float64)
    found = whitened(numbers, moments_of(numbers), WhitenConfig(over="tokens", **whiten))
    assert found.tolist() == pytest.approx([-1 / divisor, 1 / divisor])
    equal = torch.full((3,), 0.1, dtype=torch.float64)
    assert Moments(0.1, 0.0, 1).variance() == 0
    assert whitened(equal, Moments(0.1, 0.0, 3), WhitenConfig(over="tokens")).tolist() == [0] * 3


def test_an_empty_batch_has_no_deviation_of_the_others():
    assert advantages([], "", baseline="leave_one_out", scale="leave_one_out_std") == []
