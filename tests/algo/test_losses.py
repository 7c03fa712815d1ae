"""What every policy loss keeps to; values are in test_losses_golden.py."""

from __future__ import annotations

import math

import pytest
import torch
from arl_objectives.covariance import held_objective
from torch import Tensor

from agentgym_rl.algo import LossTokens, aggregation_weights, policy_loss
from agentgym_rl.algo.losses import PolicyLoss
from agentgym_rl.config import LOSSES, AlgoConfig
from tests.kit.cases import cases

ROWS = torch.tensor([0, 0, 1])
ADVANTAGES = torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64)


def loss_of(name: str, logprobs: Tensor, anchor: Tensor, weight: Tensor, **algo) -> PolicyLoss:
    tokens = LossTokens(
        logprobs=logprobs,
        anchor=anchor,
        behavior_logprobs=anchor,
        behavior_weight=weight,
        advantages=ADVANTAGES[: len(logprobs)],
        weights=torch.ones_like(weight),
        rows=ROWS[: len(logprobs)],
        turns=ROWS[: len(logprobs)],
    )
    return policy_loss(tokens, AlgoConfig(loss=name, **algo))


def fresh(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@cases("name", LOSSES)
@cases("bad", [float("nan"), float("inf"), float("-inf"), 1e4])
def test_a_dropped_token_poisons_nothing(name, bad):
    x = fresh(-1.0, -1.5, -2.0)
    anchor = torch.tensor([-1.1, bad, -2.1], dtype=torch.float64)
    weight = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    found = loss_of(name, x, anchor, weight)
    found.loss.backward()
    assert found.loss.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    if name != "gspo" or not abs(bad) <= 1e4:  # a row's ratio is that of all its tokens
        assert x.grad[1] == 0


@cases("name", LOSSES)
def test_on_policy_every_loss_is_the_policy_gradient(name):
    x = fresh(-1.0, -2.0, -0.5)
    found = loss_of(name, x, x.detach(), torch.ones(3, dtype=torch.float64))
    assert (found.clipped.item(), found.kl.item()) == (0, 0)
    found.loss.backward()
    torch.testing.assert_close(x.grad, -ADVANTAGES)


@cases("name", LOSSES)
def test_no_tokens_are_no_trouble(name):
    none = torch.zeros(0, dtype=torch.float64)
    assert loss_of(name, none, none, none).loss.item() == 0


@cases("aggregation", ["token", "sequence", "constant"])
def test_no_tokens_have_no_weights(aggregation):
    weights = aggregation_weights(
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(3, dtype=torch.int64),
        aggregation=aggregation,
        num_trained_tokens=0,
        num_episodes=0,
        max_tokens=8,
    )
    assert len(weights) == 0


def gradients(name: str, moved: float, **algo) -> list[float]:
    """Of three tokens whose log-probs have all moved by the same."""
    anchor = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    x = (anchor + moved).requires_grad_()
    loss_of(name, x, anchor, torch.ones(3, dtype=torch.float64), **algo).loss.backward()
    assert x.grad is not None
    return x.grad.tolist()


def test_where_gradients_stop():
    """Up by 0.4 is beyond both bounds: good tokens (A = 1) have gained enough, the bad one
    (A = -2) has not lost enough."""
    ratio = torch.tensor(0.4).double().exp().item()
    assert gradients("ppo", 0.4) == pytest.approx([0, 0, 2 * ratio])
    assert gradients("gspo", 0.4) == pytest.approx([0, 0, 2 * ratio])
    assert gradients("cispo", 0.4) == pytest.approx([-1.2, -1.2, 2.4])
    assert gradients("reinforce", 0.4) == pytest.approx([-1, -1, 2])
    assert gradients("ppo", -0.4) == pytest.approx([-1 / ratio, -1 / ratio, 0])


def test_dppo_stops_what_strays_in_probability_and_nothing_else():
    """exp(-1) and exp(-0.5) move by more than 0.1 when raised by 0.3; exp(-2) by 0.05."""
    ratio = torch.tensor(0.3).double().exp().item()
    found = gradients("dppo", 0.3, divergence_limit=0.1)
    assert found == pytest.approx([0, -ratio, 2 * ratio])  # the bad token comes back


def test_one_ratio_for_a_row():
    anchor = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    x = (anchor + torch.tensor([0.5, -0.5])).requires_grad_()
    found = loss_of("gspo", x, anchor, torch.ones(2, dtype=torch.float64))
    found.loss.backward()
    assert found.loss.item() == pytest.approx(-2)
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([-1, -1])


def test_where_gradients_of_the_smooth_losses_are():
    """Up by 0.4, one row of two good tokens and one of a bad one."""
    u = torch.tensor(0.4).double().exp().item()
    sigma = 1 / (1 + math.exp(-(u - 1)))
    gate = 4 * sigma * (1 - sigma) * u
    bad = 1 / (1 + math.exp(-2 * (u - 1)))
    found = gradients("sapo", 0.4, sapo={"tau_bad": 2.0})
    assert found == pytest.approx([-gate, -gate, 2 * 4 * bad * (1 - bad) * u])
    # GMPO: beyond the bound in logs, 0.3, for good tokens; a bad one has none on this side.
    assert gradients("gmpo", 0.4, clip_high=0.3) == pytest.approx([0, 0, 2 * u])
    assert gradients("gmpo", 0.4, clip_high=0.5) == pytest.approx([-u, -u, 2 * u])
    assert gradients("gmpo", -0.4, clip_low=0.3) == pytest.approx([-1 / u, -1 / u, 0])
    good, worse = math.exp(3 + 2 * 0.8 - 3 * math.exp(0.8)), math.exp(2 + 3 * 0.4 - 2 * u)
    assert gradients("vespo", 0.4) == pytest.approx([-good, -good, 2 * worse])
    assert gradients("dro", 0.4, dro_beta=0.5) == pytest.approx([-0.8, -0.8, 2.2])


def test_a_small_advantage_is_good_to_vespo(monkeypatch):
    monkeypatch.setattr(f"{__name__}.ADVANTAGES", ADVANTAGES / 4)
    good = math.exp(3 + 2 * 0.8 - 3 * math.exp(0.8))
    assert gradients("vespo", 0.4)[:2] == pytest.approx([-good / 4] * 2)


def test_the_ratio_of_a_row_has_three_gradients():
    """A row moved by 0.1 and 0.3, its first token dropped: the mean is 0.2, of the kept 0.3."""
    anchor = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    weight = torch.tensor([0.0, 1.0], dtype=torch.float64)
    both, kept = math.exp(0.2), math.exp(0.3)
    for ratio, expected in {
        "row": [-both / 2, -both / 2],
        "row_kept": [0, -kept],
        "row_token": [0, -both],
        "token": [0, -kept],
    }.items():
        x = (anchor + torch.tensor([0.1, 0.3])).requires_grad_()
        loss_of("ppo", x, anchor, weight, ratio=ratio, clip_high=9).loss.backward()
        assert x.grad is not None
        assert x.grad.tolist() == pytest.approx(expected), ratio


def test_held_tokens_pay_for_their_distance():
    anchor = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    x = (anchor + torch.tensor([0.1, 0.1, -0.2])).requires_grad_()
    tokens = LossTokens(
        *(x, anchor, anchor, torch.ones(3).double(), 0 * ADVANTAGES, torch.ones(3).double()),
        *(ROWS, ROWS),
    )
    held = held_objective(tokens, torch.tensor([True, False, True]), 0.5)
    policy_loss(tokens, AlgoConfig(), [held]).loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([0.5, 0, -0.5])


def stale_ppo(fallen: float, advantage: float, **algo) -> Tensor:
    """Return the gradient of a token whose log-prob has changed by `fallen` since sampling."""
    x = fresh(-1.0)
    tokens = LossTokens(
        logprobs=x,
        anchor=x.detach(),
        behavior_logprobs=x.detach() - fallen,
        behavior_weight=torch.ones(1, dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        weights=torch.ones(1, dtype=torch.float64),
        rows=ROWS[:1],
        turns=ROWS[:1],
    )
    found = policy_loss(tokens, AlgoConfig(**algo))
    found.loss.backward()
    assert x.grad is not None
    assert found.clipped.item() == (x.grad.item() == 0)
    return x.grad


def test_ppo_lowers_no_token_that_has_fallen_far_enough():
    assert stale_ppo(-0.23, -1.0) == 0  # e^-.23 = .795
    assert stale_ppo(-0.22, -1.0) == 1  # e^-.22 = .803
    assert stale_ppo(-5.0, 1.0) == -1  # it may rise again
    assert stale_ppo(5.0, 1.0) == -1
    assert stale_ppo(-0.5, -1.0, behavior_clip=0.5) == 1
    assert stale_ppo(-5.0, -1.0, behavior_clip=1.0) == 1
    assert stale_ppo(-5.0, -1.0, loss="reinforce") == 1


@cases("seed", range(20))
def test_on_new_episodes_the_behavior_clip_is_ppos_own(seed):
    dice = torch.Generator().manual_seed(seed)
    x = (-2 * torch.rand(3, generator=dice, dtype=torch.float64)).requires_grad_()
    anchor = x.detach() + 0.5 * torch.randn(3, generator=dice, dtype=torch.float64)
    weight = torch.ones(3, dtype=torch.float64)
    found = loss_of("ppo", x, anchor, weight)
    without = loss_of("ppo", x, anchor, weight, behavior_clip=1.0)
    assert torch.equal(
        *(torch.autograd.grad(it.loss, x, retain_graph=True)[0] for it in (found, without))
    )
    assert found.clipped.item() == without.clipped.item()


@cases("ratio", [2.0, 0.5])
def test_the_divergence_is_k3_of_the_tokens_that_count(ratio):
    """u − 1 − log u, written down; a dropped token adds nothing."""
    anchor = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    weight = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = loss_of("ppo", fresh(-1.0 + math.log(ratio), -9.0), anchor, weight)
    assert found.kl.item() == pytest.approx(ratio - 1 - math.log(ratio))


@cases("name", ["gmpo", "ppo"])
def test_no_token_without_an_advantage_counts_as_bounded(name):
    x, one = fresh(-1.0, -9.0), torch.ones(2, dtype=torch.float64)
    tokens = LossTokens(
        logprobs=x,
        anchor=torch.tensor([-5.0, -5.0], dtype=torch.float64),
        behavior_logprobs=x.detach() + 1.0,
        behavior_weight=one,
        advantages=0 * one,
        weights=one,
        rows=torch.zeros(2, dtype=torch.int64),
        turns=torch.zeros(2, dtype=torch.int64),
    )
    assert policy_loss(tokens, AlgoConfig(loss=name)).clipped.item() == 0


def test_vespo_has_the_numbers_of_its_paper():
    found = AlgoConfig(loss="vespo").model_dump()["vespo"]
    assert found == {"k_good": 2.0, "lambda_good": 3.0, "k_bad": 3.0, "lambda_bad": 2.0}
