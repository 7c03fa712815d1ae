"""The estimators and what their gradients are, against a divergence that can be summed."""

from __future__ import annotations

import pytest
import torch

from agentgym_rl.algo.kl import kl_estimates, kl_loss, kl_to_come
from agentgym_rl.config import KlConfig
from tests.kit.cases import cases

LOGITS = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.0, 0.4, -0.3, 0.2], dtype=torch.float64).log_softmax(0)
BEHAVIOR = torch.tensor([0.5, -0.5, 0.2, 0.0], dtype=torch.float64).log_softmax(0)


def divergence(logits: torch.Tensor) -> torch.Tensor:
    x = logits.log_softmax(0)
    return (x.exp() * (x - REFERENCE)).sum()


@cases("estimator", ["k1", "k3"])
def test_the_mean_over_the_policy_is_the_divergence(estimator):
    x = LOGITS.log_softmax(0)
    mean = (x.exp() * kl_estimates(x, REFERENCE, estimator)).sum()
    assert mean.item() == pytest.approx(divergence(LOGITS).item())


def test_values():
    x, r = torch.tensor([0.0]), torch.tensor([0.5])
    found = [kl_estimates(x, r, k).item() for k in ("k1", "k2", "k3")]
    assert found == pytest.approx([-0.5, 0.125, 0.14872], abs=1e-5)


@cases("estimator", ["k1", "k3"])
def test_on_policy_weights_give_the_gradient_of_the_divergence(estimator):
    """The mean over what the behavior policy samples, summed over the whole vocabulary."""
    kl = KlConfig(coef=0.7, estimator=estimator, on_policy=True, reference="initial")
    logits = LOGITS.clone().requires_grad_()
    loss = kl_loss(logits.log_softmax(0), REFERENCE, BEHAVIOR, BEHAVIOR.exp(), kl)
    (found,) = torch.autograd.grad(loss, logits)
    (expected,) = torch.autograd.grad(0.7 * divergence(logits), logits)
    torch.testing.assert_close(found, expected)


def test_a_logprob_that_is_not_finite_costs_nothing():
    x = torch.tensor([-1.0, -1.0], requires_grad=True)
    r = torch.tensor([float("-inf"), -2.0])
    kl = KlConfig(coef=1.0, reference="initial", on_policy=True)
    loss = kl_loss(x, r, torch.tensor([-1.0, float("nan")]), torch.ones(2), kl)
    loss.backward()
    assert loss.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_as_a_reward_it_counts_for_what_came_before_it():
    x, r = torch.zeros(4), torch.tensor([-1.0, -2.0, -4.0, -8.0])
    kl = KlConfig(coef=0.5, estimator="k1", placement="reward", reference="initial")
    rows = torch.tensor([0, 0, 1, 1])
    assert kl_to_come(x, r, rows, kl).tolist() == [-1.5, -1, -6, -4]
