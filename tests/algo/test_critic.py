"""What a critic's numbers are made of; values of GAE are in test_gae_golden.py."""

from __future__ import annotations

import pytest
import torch
from arl_objectives.values import (
    adaptive_lambdas,
    generalized_advantages,
    terminal_rewards,
    value_loss,
)

from agentgym_rl.config import AlgoConfig, load_config
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases

ROWS = torch.tensor([0, 0, 0, 1, 1])


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_every_row_ends_with_its_episodes_reward():
    found = terminal_rewards(tensor(0.5, -1), torch.tensor([1, 1, 1, 0, 0]), ROWS)
    assert found.tolist() == [0, 0, -1, 0, 0.5]


def test_rows_know_nothing_of_each_other():
    rewards, values = tensor(0, 0, 1, 0, 2), tensor(0.1, -0.4, 0.3, 7, 0.2)
    together = generalized_advantages(rewards, values, ROWS, discount=0.9, gae_lambda=0.8)
    for part in (slice(0, 3), slice(3, 5)):
        alone = generalized_advantages(
            rewards[part], values[part], ROWS[part], discount=0.9, gae_lambda=0.8
        )
        for a, b in zip(together, alone, strict=True):
            assert torch.equal(a[part], b)


def test_with_lambda_one_and_no_discount_it_is_reward_less_value():
    values = tensor(0.1, -0.4, 0.3)
    found = generalized_advantages(tensor(0, 0, 1), values, ROWS[:3], discount=1, gae_lambda=1)
    torch.testing.assert_close(found.advantages, 1 - values)
    torch.testing.assert_close(found.returns, torch.ones_like(values))


def test_no_tokens_are_no_trouble():
    none = tensor()
    found = generalized_advantages(none, none, none.long(), discount=1, gae_lambda=1)
    assert found.advantages.shape == (0,)
    assert terminal_rewards(tensor(1), none.long(), none.long()).shape == (0,)


@cases(
    "value, clip, loss, gradient, clipped",
    [
        (0.1, 0.2, 0.405, -0.9, 0),  # within the clip: plain squared error
        (0.5, 0.2, 0.32, 0.0, 1),  # toward the return, beyond the clip: no more of it
        (-0.5, 0.2, 1.125, -1.5, 0),  # away from the return: comes back whatever the clip
        (0.5, None, 0.125, -0.5, 0),
    ],
)
def test_a_value_moves_at_most_by_the_clip(value, clip, loss, gradient, clipped):
    """Old value 0, return 1."""
    values = tensor(value).requires_grad_()
    found = value_loss(values, tensor(0), tensor(1), tensor(1), clip=clip)
    found.loss.backward()
    assert values.grad is not None
    assert (found.loss.item(), values.grad.item()) == pytest.approx((loss, gradient))
    assert found.clipped.item() == clipped


def test_tokens_weigh_what_the_aggregation_says():
    values, weights = tensor(0.3, 0.3).requires_grad_(), tensor(0.25, 0.75)
    value_loss(values, tensor(0, 0), tensor(1, 1), weights, clip=None).loss.backward()
    torch.testing.assert_close(values.grad, -0.7 * weights)


def test_within_the_clip_a_value_is_the_same_to_the_bit():
    """old + (V − old) is not V in floating point: such values counted as clipped."""
    values = torch.linspace(-1, 1, 99)
    old, ones = torch.full((99,), 0.1), torch.ones(99)
    assert (old + (values - old) != values).any()
    assert value_loss(values, old, 9 * ones, ones, clip=2.0).clipped.item() == 0


def test_a_long_row_has_a_larger_lambda():
    found = adaptive_lambdas(torch.tensor([0, 0, 0, 0, 1]), 0.5)
    assert found.tolist() == [0.5] * 4 + [0]
    rewards, values = tensor(0, 0, 1), tensor(0.5, 0.25, 0.125)
    share = torch.tensor([0.5, 0.5, 0.5])
    one = generalized_advantages(rewards, values, ROWS[:3], discount=1, gae_lambda=share)
    other = generalized_advantages(rewards, values, ROWS[:3], discount=1, gae_lambda=0.5)
    assert torch.equal(one.advantages, other.advantages)


def test_the_policy_is_trained_after_the_warm_up_of_its_critic():
    given = {"baseline": "critic", "scale": "none", "critic": {"warmup_steps": 2}}
    algo = AlgoConfig.model_validate(given)
    assert [algo.trains_policy(step) for step in range(4)] == [False, False, True, True]
    assert AlgoConfig().trains_policy(0)


def test_a_critic_may_have_any_learning_rate_from_zero_on():
    for rate in (0.0, 1e-5):
        given = {"trainer.critic_learning_rate": rate, "preset": "ppo-critic"}
        assert load_config(None, given).trainer.model_dump()["critic_learning_rate"] == rate
    with pytest.raises(ConfigError, match="at least 0"):
        load_config(None, {"trainer.critic_learning_rate": -1e-5, "preset": "ppo-critic"})
