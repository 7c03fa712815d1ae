"""The gradient of each preset on one batch, against formulas that share nothing with the package.

Before the first optimizer step the policy is the proximal one: the ratio is 1, and a loss is what
it makes of advantages, behavior weights and aggregation. Ratios away from 1 are in
tests/algo/test_losses.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from arl_plan import probe
from test_step import gradient_of, make_stepper
from trainer_samples import make_items, make_shards, recipe, with_behavior

from agentgym_rl.algo import pack_rows
from agentgym_rl.config import AlgoConfig, preset_names
from agentgym_rl.core import BatchRow, TrainerError
from agentgym_rl.trainer import Phases, Policy, World

ITEMS, REWARDS, GROUPS = make_items()
R, OF = np.array(REWARDS), np.array([int(g[1:]) for g in GROUPS])
ROW_OF = np.concatenate([np.full(it.row.num_trained, i) for i, it in enumerate(ITEMS)])
EPISODE_OF = np.array([it.episode for it in ITEMS])[ROW_OF]
LENGTHS = np.bincount(EPISODE_OF, minlength=len(R))
CUT = np.arange(len(R)) % 5 == 4


def mates(i: int, *, own: bool = True) -> np.ndarray:
    return R[(OF[i] == OF) & (own | (np.arange(len(R)) != i))]


def grouped(eps: float = 1e-6, rewards: np.ndarray = R) -> np.ndarray:
    found = []
    for i in range(len(R)):
        its = rewards[OF[i] == OF]
        spread = its.std(ddof=1)
        found.append((rewards[i] - its.mean()) / (spread + eps) if np.ptp(its) else 0.0)
    return np.array(found)


def centred(rewards: np.ndarray = R) -> np.ndarray:
    return np.array([rewards[i] - rewards[OF[i] == OF].mean() for i in range(len(R))])


def others() -> np.ndarray:
    """NeMo RL's: mean and deviation of the others; not divided where they are equal."""
    found = []
    for i in range(len(R)):
        its = mates(i, own=False)
        spread = its.std(ddof=1)
        found.append((R[i] - its.mean()) / (spread + 1e-6 if np.ptp(its) else 1.0))
    return np.array(found)


def whitened(tokens: np.ndarray, *, ddof: int, divisor: Callable[[float], float]) -> np.ndarray:
    return (tokens - tokens.mean()) / divisor(tokens.var(ddof=ddof))


def to_come(cost: np.ndarray) -> np.ndarray:
    """The sum over a token and the later ones of its row."""
    return np.array([cost[i:][ROW_OF[i:] == ROW_OF[i]].sum() for i in range(len(cost))])


def k1(p: np.ndarray, ref: np.ndarray) -> np.ndarray:
    return p - ref


def row_mean(values: np.ndarray) -> np.ndarray:
    return np.array([values[row == ROW_OF].mean() for row in ROW_OF])


def advantages(name: str, p: np.ndarray, ref: np.ndarray) -> np.ndarray:
    """The advantages of tokens, by the name of the preset."""
    shaped = 10 * (R - 0.5)
    z = (R - R.mean()) / (R.std(ddof=1) + 1e-6)
    if name in ("areal-paper", "reinforce++"):
        cost = to_come(0.01 * k1(p, ref)) if name == "reinforce++" else 0
        scaled = (shaped - shaped.mean()) / (shaped.std(ddof=1) + 1e-6)
        return (z if name == "reinforce++" else scaled)[EPISODE_OF] - cost
    if name == "areal":
        own = grouped(1e-5, shaped)[EPISODE_OF]
        return whitened(own, ddof=1, divisor=lambda v: v**0.5 + 1e-5)
    if name in ("nemo-rl", "rloo"):
        left = np.array([R[i] - mates(i, own=False).mean() for i in range(len(R))])
        cost = to_come(0.03 * k1(p, ref)) if name == "rloo" else 0
        return (others() if name == "nemo-rl" else left)[EPISODE_OF] - cost
    if name == "prorlv2":
        own = centred(np.where(CUT, 0, R))[EPISODE_OF]
        return whitened(own, ddof=0, divisor=lambda v: max(v, 1e-8) ** 0.5)
    if name == "reinforce++-baseline":
        return whitened(centred()[EPISODE_OF], ddof=1, divisor=lambda v: (v + 1e-8) ** 0.5)
    if name == "opo":
        means = [np.average(mates(i), weights=LENGTHS[OF[i] == OF]) for i in range(len(R))]
        return (R - np.array(means))[EPISODE_OF]
    if name == "gpg":
        return (centred() * len(R) / np.count_nonzero(R))[EPISODE_OF]
    if name == "dr-grpo":
        return centred()[EPISODE_OF]
    if name == "dapo":
        share = np.clip((LENGTHS - (192 - 38)) / 38, 0, 1)
        return grouped(rewards=R - share)[EPISODE_OF]
    if name in ("verl", "ppo-critic", "vapo"):  # all values are 0 at first
        share = {"verl": np.ones(len(ITEMS)), "ppo-critic": np.full(len(ITEMS), 0.95)}.get(name)
        if share is None:
            rows = np.bincount(ROW_OF)
            share = 1 - 1 / np.maximum(0.05 * rows, 1)
        after = np.bincount(ROW_OF).cumsum()[ROW_OF] - 1 - np.arange(len(ROW_OF))
        own = R[EPISODE_OF] * share[ROW_OF] ** after
        if name == "vapo":
            return own
        divisor = (lambda v: (v + 1e-8) ** 0.5) if name == "verl" else (lambda v: v**0.5 + 1e-6)
        return whitened(own, ddof=1, divisor=divisor)
    return grouped(1e-4 if name == "trl" else 1e-6)[EPISODE_OF]


def weights(name: str, w: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """The behavior weights of tokens; `ratios` are log w."""
    if name in ("nemo-rl", "verl", "vespo"):
        return np.ones_like(w)
    if name == "trl":
        product = np.exp(np.array([ratios[row == ROW_OF].sum() for row in ROW_OF]))
        return product * (product <= 3)
    if name == "m2po":
        order = np.argsort(ratios**2)
        means = np.cumsum((ratios**2)[order]) / np.arange(1, len(w) + 1)
        kept = np.zeros(len(w))
        kept[order[: max(1, (means < 0.04).sum())]] = 1
        return kept
    return w * ((w >= (0.5 if name == "prorlv2" else 0)) & (w <= 5))


def aggregated(name: str) -> np.ndarray:
    if name in ("grpo", "gspo", "sapo", "gmpo"):
        return 1 / (LENGTHS[EPISODE_OF] * len(R))
    if name in ("dr-grpo", "rloo"):
        return np.full(len(EPISODE_OF), 1 / (len(R) * 192))
    return np.full(len(EPISODE_OF), 1 / len(EPISODE_OF))


def slopes(name: str, p: np.ndarray, b: np.ndarray, ref: np.ndarray) -> np.ndarray:
    """The derivative of the loss by each token's log-prob."""
    a, share = advantages(name, p, ref), aggregated(name)
    w = weights(name, np.exp(p - b), p - b)
    found = -a * w * share
    if name == "gspo":  # through the mean of the row, over tokens with weights of their own
        found = row_mean(found)
    if name == "gmpo":
        kept = w > 0
        sums = np.array([found[row == ROW_OF].sum() / kept[row == ROW_OF].sum() for row in ROW_OF])
        found = sums * kept
    if name == "vespo":
        logs = np.array([(p - b)[row == ROW_OF].sum() for row in ROW_OF])
        k, lam = np.where(a >= 0, 2, 3), np.where(a >= 0, 3, 2)
        found = -np.exp(lam + k * logs - lam * np.exp(logs)) * a * share
    log = ref - p
    k2, k3 = log**2 / 2, np.exp(log) - 1 - log
    if name == "grpo":
        found = found + 0.04 * share * (1 - np.exp(log))
    if name == "nemo-rl":
        found = found + 0.01 * share * (1 - np.exp(log) + k3) * (k3 < 10)
    if name == "prorlv2":
        found = found + 1e-4 * share * (-log + k2) * (k2 < 10)
    if name == "reinforce++-baseline":
        found = found + 0.01 * share * -log
    if name == "vapo":
        good = R[EPISODE_OF] > 0
        found = found - 0.1 * good / good.sum()
    return found


def row_logprobs(policy: Policy) -> torch.Tensor:
    return torch.cat([policy.logprobs(pack_rows([it.row])) for it in ITEMS])


def near(p: np.ndarray) -> tuple[list[BatchRow], np.ndarray]:
    """The rows as if a policy near to this one had sampled them, and its log-probs."""
    b = (p + np.random.default_rng(3).normal(0, 0.3, len(p))).astype(np.float32)
    rows = [with_behavior(it.row, b[i == ROW_OF]) for i, it in enumerate(ITEMS)]
    return [BatchRow(r, it.episode) for r, it in zip(rows, ITEMS, strict=True)], b.astype(float)


class Near:
    """A policy, and the batch that one near to it has sampled."""

    def __init__(self, model: Path, reference: Path, world: World) -> None:
        self.policy = make_stepper(model, world).policy
        self.x = row_logprobs(self.policy)
        """The log-probs of all tokens, with their graph."""
        self.p = self.x.detach().numpy()
        self.items, self.b = near(self.p)
        with torch.no_grad():
            of = Policy.load(reference, world, master_dtype=torch.float64)
            self.ref = row_logprobs(of).numpy()

    def gradient(self, slopes: np.ndarray) -> torch.Tensor:
        """The gradient of a loss with these derivatives by the log-probs."""
        self.policy.model.zero_grad()
        (torch.from_numpy(slopes) * self.x).sum().backward(retain_graph=True)
        return torch.cat([p.grad.flatten() for p in self.policy.model.parameters()])


@pytest.fixture(scope="module")
def sampled(tiny_model, other_model, world) -> Near:
    return Near(tiny_model, other_model, world)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-6)])
@pytest.mark.parametrize("name", [n for n in preset_names() if n != "clip-cov"])
def test_a_preset_has_the_gradient_of_its_formula(
    tiny_model, other_model, world, sampled, name, dtype, tolerance
):
    algo = recipe(name)
    (shard,) = make_shards(sampled.items, REWARDS, GROUPS, num_minibatches=1)
    reference = other_model if algo.kl.coef else None
    stepper = make_stepper(
        tiny_model, world, algo=algo, reference_dir=reference, max_grad_norm=1e9, dtype=dtype
    )
    _, gradient = gradient_of(stepper, shard)
    found = slopes(name, sampled.p, sampled.b, sampled.ref)
    assert np.abs(found).max() > 1e-5
    expected = sampled.gradient(found)
    within = tolerance * max(1.0, float(expected.norm()))
    torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=within)


def test_clip_cov_drops_one_of_the_tokens_in_its_interval(tiny_model, world):
    """A share of 2e-4 of some hundred tokens is one. With this seed it is among the first three."""
    policy = make_stepper(tiny_model, world).policy
    x = row_logprobs(policy)
    p = x.detach().numpy()
    items, b = near(p)
    (shard,) = make_shards(items, REWARDS, GROUPS, num_minibatches=1)
    stepper = make_stepper(tiny_model, world, algo=recipe("clip-cov"), max_grad_norm=1e9)
    _, gradient = gradient_of(stepper, shard)
    a, w = grouped()[EPISODE_OF], np.exp(p - b)
    slope = -a * w * (w <= 5) / len(p)
    cov = (a - a.mean()) * (p - p.mean())
    candidates = np.flatnonzero((cov > 1) & (cov < 5))
    same = []
    for i in candidates[:3]:
        policy.model.zero_grad()
        without = torch.from_numpy(np.where(np.arange(len(p)) == i, 0, slope))
        (without * row_logprobs(policy)).sum().backward()
        found = torch.cat([t.grad.flatten() for t in policy.model.parameters()])
        same.append(torch.allclose(found, gradient, rtol=0, atol=1e-9))
    assert len(candidates) > 9
    assert sum(same) == 1


def test_parts_of_rewards_are_compared_one_by_one(tiny_model, world):
    """GDPO: what is divided by the deviation of its own part cannot drown the other part."""
    parts = {"right": R, "brief": 100 * np.sin(np.arange(len(R)))}
    algo = AlgoConfig(
        reward={"parts": {"right": 1.0, "brief": 0.5}},
        whiten={"over": "episodes", "eps": 0},
        behavior_correction={"type": "none"},
        behavior_clip=1.0,
    )
    policy = make_stepper(tiny_model, world).policy
    x = row_logprobs(policy)
    (shard,) = make_shards(ITEMS, REWARDS, GROUPS, num_minibatches=1)
    shard = replace(shard, parts={name: part.tolist() for name, part in parts.items()})
    stepper = make_stepper(tiny_model, world, algo=algo, max_grad_norm=1e9)
    _, gradient = gradient_of(stepper, shard)
    total = grouped(rewards=parts["right"]) + 0.5 * grouped(rewards=parts["brief"])
    own = (total - total.mean()) / total.std(ddof=1)
    (torch.from_numpy(-own[EPISODE_OF] / len(x)) * x).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-9)
    with pytest.raises(TrainerError, match="11 values of part 'right'"):
        stepper.train_shard(
            replace(shard, parts={"right": [0.0] * 11, "brief": [0.0] * 12}), Phases()
        )


def test_the_probe_of_a_plan_has_parts_too(tiny_model, world):
    algo = AlgoConfig(reward={"parts": {"right": 1.0}, "truncated_factor": 1.0})
    stepper = make_stepper(tiny_model, world, algo=algo, max_tokens_per_microbatch=4096)
    assert probe._pass(stepper, 0, 4)["time/forward_backward"] > 0
