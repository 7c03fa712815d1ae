from __future__ import annotations

import pytest
from arl_objectives.keys.rewards import RewardConfig
from arl_objectives.rewards import overlong, shaped_rewards

from agentgym_rl.config import AlgoConfig


def shaped(rewards: list[float], lengths: list[int] | None = None, **reward) -> list[float]:
    algo = AlgoConfig(max_tokens=100, reward=RewardConfig(**reward))
    return shaped_rewards(rewards, lengths or [0] * len(rewards), algo).tolist()


def test_as_they_are_by_default():
    assert shaped([0.0, 1.0, -3.5], [10, 1000, 5]) == [0, 1, -3.5]


def test_the_penalty_rises_over_the_buffer_and_stays():
    found = overlong([10, 80, 85, 90, 100, 500], limit=100, buffer=20)
    assert found.tolist() == [0, 0, 0.25, 0.5, 1, 1]


def test_limit_and_buffer_by_default_are_the_nominal_length_and_a_fifth_of_it():
    assert shaped([1, 1, 1], [80, 90, 100], overlong_penalty=2) == [1, 0, -1]
    assert shaped([1], [55], overlong_penalty=1, overlong_limit=60, overlong_buffer=10) == [0.5]


def test_the_order():
    """(0 - 1 + 0.5) * 10 = -5, clipped to -4; (1 + 0.5) * 10 = 15, clipped to 4."""
    found = shaped(
        [0, 1], [100, 0], overlong_penalty=1, bias=0.5, scale=10, clip=4, normalize=False
    )
    assert found == [-4, 4]
    normal = shaped(
        [0, 1], [100, 0], overlong_penalty=1, bias=0.5, scale=10, clip=4, normalize=True
    )
    assert normal == pytest.approx([-(2**-0.5), 2**-0.5], abs=1e-5)


def test_alike_or_alone_normalizes_to_nothing():
    assert shaped([3.0, 3.0], normalize=True) == [0, 0]
    assert shaped([3.0], normalize=True) == [0]
    assert shaped([], normalize=True) == []


def test_beyond_the_limit_the_penalty_rises_only_if_told():
    keys = {"overlong_penalty": 0.5, "overlong_limit": 10, "overlong_buffer": 4}
    for capped, expected in ((True, [0, -0.25, -0.5]), (False, [0, -0.25, -1])):
        algo = AlgoConfig(reward=RewardConfig(**keys, overlong_capped=capped))
        assert shaped_rewards([0, 0, 0], [6, 8, 14], algo).tolist() == expected


def test_a_truncated_episode_is_paid_a_share():
    algo = AlgoConfig(reward=RewardConfig(truncated_factor=0.25))
    assert shaped_rewards([2, 2], [], algo, truncated=[False, True]).tolist() == [2, 0.5]
    with pytest.raises(ValueError, match="2 rewards but 0 truncations"):
        shaped_rewards([2, 2], [], algo)
