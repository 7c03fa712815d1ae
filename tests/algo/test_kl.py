"""The estimators and what their gradients are, against a divergence that can be summed."""

from __future__ import annotations

import math

import pytest
import torch
from arl_objectives.keys.kl import KlConfig
from arl_objectives.keys.teacher import TeacherConfig
from arl_objectives.kl import kl_estimates, kl_loss, kl_to_come
from arl_objectives.taught import taught_by
from arl_objectives.teachers import distillation_advantages, distillation_loss, top_loss

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
    mean = (x.exp() * kl_estimates(x, REFERENCE, KlConfig(estimator=estimator))).sum()
    assert mean.item() == pytest.approx(divergence(LOGITS).item())


def test_values():
    x, r = torch.tensor([0.0]), torch.tensor([0.5])
    found = [kl_estimates(x, r, KlConfig(estimator=k)).item() for k in ("k1", "k2", "k3")]
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
    assert x.grad[0] == 0
    for estimator in ("k1", "k2", "k3", "abs"):
        kl = KlConfig(coef=1.0, reference="initial", estimator=estimator)
        assert kl_estimates(x.detach(), r, kl)[0] == 0


def test_a_weight_that_is_not_finite_is_one():
    x, r = torch.tensor([-1.0]), torch.tensor([-2.0])
    kl = KlConfig(coef=1.0, reference="initial", on_policy=True, estimator="k1")
    for behavior in (math.nan, -math.inf):
        assert kl_loss(x, r, torch.tensor([behavior]), torch.ones(1), kl).item() == 1


def test_as_a_reward_it_counts_for_what_came_before_it():
    x, r = torch.zeros(4), torch.tensor([-1.0, -2.0, -4.0, -8.0])
    kl = KlConfig(coef=0.5, estimator="k1", placement="reward", reference="initial")
    rows = torch.tensor([0, 0, 1, 1])
    assert kl_to_come(x, r, rows, kl).tolist() == [-1.5, -1, -6, -4]


def slope(difference: float, **kl) -> tuple[float, float]:
    """The penalty on a token whose log π_ref − log π is this, and its derivative by log π."""
    x = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    config = KlConfig(coef=1.0, reference="initial", **kl)
    loss = kl_loss(x, x.detach() + difference, x.detach() - 0.5, torch.ones(1), config)
    loss.backward()
    assert x.grad is not None
    return loss.item(), x.grad.item()


def test_the_gradient_is_chosen_apart_from_the_estimate():
    k3 = math.exp(0.3) - 1.3
    assert slope(0.3) == pytest.approx((k3, 1 - math.exp(0.3)))
    assert slope(0.3, gradient="score") == pytest.approx((k3, -0.3))
    assert slope(0.3, gradient="k2") == pytest.approx((k3, -0.3))
    assert slope(0.3, estimator="k1", gradient="score") == pytest.approx((-0.3, 0.7))
    assert slope(0.3, estimator="k1", gradient="k2") == pytest.approx((-0.3, -0.3))
    assert slope(0.3, estimator="abs") == pytest.approx((0.3, -1))


def test_beyond_a_bound_there_is_no_gradient():
    assert slope(3.0, estimator="k2", clamp=4.0) == (4, 0)
    for gradient in ("estimate", "score", "k2"):
        found = slope(3.0, estimator="k2", clamp_ratio=2.0, gradient=gradient)
        assert found == (2, 0), gradient
    weighted = slope(3.0, estimator="k2", clamp_ratio=2.0, on_policy=True)
    assert weighted == pytest.approx((2 * math.exp(0.5), 0))


def test_a_token_pays_for_itself_alone():
    x, r = torch.zeros(3), torch.tensor([-1.0, -2.0, -4.0])
    kl = KlConfig(coef=0.5, estimator="k1", placement="token", reference="initial")
    assert kl_to_come(x, r, torch.zeros(3).long(), kl).tolist() == [-0.5, -1, -2]


def test_distillation_has_the_gradient_of_the_divergence():
    """As a loss, and as an advantage of REINFORCE; tokens of another policy are weighted, and so is
    the teacher, by 2."""
    logits = LOGITS.clone().requires_grad_()
    (expected,) = torch.autograd.grad(2 * 0.7 * divergence(logits), logits)
    x = logits.log_softmax(0)
    taught = taught_by(REFERENCE[:, None], torch.full((4, 1), 2.0))
    drawn, weight = BEHAVIOR.exp(), (x.detach() - BEHAVIOR).exp()
    loss = distillation_loss(x, taught, drawn, weight, 0.7)
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    torch.testing.assert_close(found, expected)
    teacher = TeacherConfig.model_validate({"models": "m", "coef": 0.7})
    advantages = distillation_advantages(x.detach(), taught, torch.arange(4), teacher)
    (found,) = torch.autograd.grad(-(drawn * weight * advantages * x).sum(), logits)
    torch.testing.assert_close(found, expected)


def test_several_teachers_are_one_of_their_weighted_mean():
    nan = float("nan")
    logprobs = torch.tensor([[-1.0, -4.0], [-1.0, nan], [nan, nan], [-2.0, -2.0]])
    weights = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    taught = taught_by(logprobs, weights)
    assert taught.logprobs.tolist() == [-3, -1, 0, 0]
    assert taught.weight.tolist() == [3, 1, 0, 0]
    assert taught.divergence(torch.full((4,), -0.5)).tolist() == [2.5, 0.5, 0, 0]


@cases("horizon, expected", [("token", [-1, -4, -8, -16]), ("row", [-5, -4, -24, -16])])
def test_the_cost_of_a_token_is_its_own_or_that_of_its_row_to_come(horizon, expected):
    given = {"models": ["m"], "coef": 0.5, "horizon": horizon}
    logprobs, weights = [[-1.0], [-2.0], [-4.0], [-8.0]], [[2.0], [4.0], [4.0], [4.0]]
    taught = taught_by(torch.tensor(logprobs), torch.tensor(weights))
    teacher = TeacherConfig.model_validate(given)
    rows = torch.tensor([0, 0, 1, 1])
    assert distillation_advantages(torch.zeros(4), taught, rows, teacher).tolist() == expected


def test_the_divergence_of_the_likeliest_tokens_is_multiplied_by_its_weights():
    """Two outcomes of 3/4 and 1/4 against 1/2 each; the likeliest token alone is known."""
    ours, theirs = math.log(0.75), math.log(0.5)
    top = torch.tensor([[[[theirs], [3.0]]], [[[theirs], [3.0]]]], dtype=torch.float64)
    logprobs = torch.full((2, 1), theirs, dtype=torch.float64)
    taught = taught_by(logprobs, torch.tensor([[2.0], [0.0]], dtype=torch.float64), top)
    x = torch.full((2, 1), ours, dtype=torch.float64)
    found = top_loss(x, taught, torch.tensor([0.5, 0.5], dtype=torch.float64), 3.0)
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert found.item() == pytest.approx(3.0 * 0.5 * 2.0 * divergence)
    x[1] = -math.inf  # of the token without a teacher
    again = top_loss(x, taught, torch.tensor([0.5, 0.5], dtype=torch.float64), 3.0)
    assert again.item() == found.item()
