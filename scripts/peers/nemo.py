"""NeMo RL's formulas (https://github.com/NVIDIA-NeMo/RL, main of November 2026), written anew from
their description: the package has no wheel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cases import Case
from torch import Tensor


def mean(values: Tensor, mask: Tensor, total: Any = None) -> Tensor:
    return (values * mask).sum() / (mask.sum() if total is None else total)


def reduced(case: Case, values: Tensor, *, token: bool) -> Tensor:
    """Return the mean over all tokens, or over episodes of their means."""
    if token:
        return mean(values, case.mask)
    each = (values * case.mask).sum(1) / case.mask.sum(1).clamp(min=1)
    return each.sum() / (case.mask.sum(1) > 0).sum()


def weights(case: Case, kind: str | None, low: float | None, high: float, rows: bool) -> Tensor:
    """Return the importance weights of a kind: None, tis, icepop or seq-mask-tis."""
    log = (case.p - case.b) * case.mask
    weight = log.sum(1, keepdim=True).exp().expand_as(log) if rows else log.exp()
    if kind == "tis":
        return weight.clamp(min=low or 0.0, max=high)
    if kind == "icepop":
        return weight * ((weight >= low) & (weight <= high))
    if kind == "seq-mask-tis":
        geometric = (log.sum(1) / case.mask.sum(1).clamp(min=1)).exp()
        return weight * ((geometric >= low) & (geometric <= high))[:, None]
    return weight


def policy_loss(
    case: Case,
    x: Tensor,
    *,
    token: bool = True,
    clip: tuple[float, float] = (0.2, 0.2),
    dual: float | None = None,
    ratio: str = "token",
    correct: bool = True,
    kind: str | None = None,
    low: float | None = None,
    high: float = 0.0,
) -> Tensor:
    """Return the actor's loss; `ratio`: token, row, none (log-probs), one or cispo."""
    log, advantages = x - case.p, case.advantages[:, None]
    if ratio == "row":
        log = ((log * case.mask).sum(1) / case.mask.sum(1).clamp(min=1))[:, None].expand_as(x)
    plain = {"none": x, "one": (x - x.detach()).exp()}.get(ratio, log.exp())
    bounded = plain.clamp(1 - clip[0], 1 + clip[1]) if ratio in ("token", "row", "cispo") else plain
    loss = torch.maximum(-advantages * plain, -advantages * bounded)
    if ratio == "cispo":
        loss = -advantages * bounded.detach() * x
    if dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual), loss)
    if correct:
        loss = loss * weights(case, kind, low, high, ratio == "row").detach()
    return reduced(case, loss, token=token)


def kl_loss(case: Case, x: Tensor, *, kind: str, token: bool, on_policy: bool) -> Tensor:
    """Return the penalty, with a coefficient of 1, bounds of 20 and 10 and its score term."""
    log = case.ref - x
    inside = log.abs() <= 20
    log = log.clamp(-20, 20)
    weight = (x - (case.b if on_policy else x.detach())).exp()
    weight = torch.where(inside, weight, weight.detach())
    estimate = {"k1": -log, "k2": log**2 / 2, "k3": log.exp() - 1 - log}[kind]
    return reduced(case, (weight * estimate).clamp(-10, 10), token=token)


def positive_nll(case: Case, x: Tensor) -> Tensor:
    good = case.mask * (case.rewards > 0).double()[:, None]
    return -(x * good).sum() / good.sum().clamp(min=1)


def per_prompt(
    rewards: Tensor, groups: list[int], *, leave_one_out: bool, normalize: bool
) -> Tensor:
    """Return rewards less the mean of their group, divided by its deviation, if that is not 0;
    both without the episode itself, if `leave_one_out`."""
    r, of = rewards.numpy(), np.asarray(groups)
    found = np.zeros(len(r))
    for i in range(len(r)):
        among = (of == of[i]) & ((np.arange(len(r)) != i) | (not leave_one_out))
        found[i] = r[i] - r[among].mean()
        spread = r[among].std(ddof=1) if among.sum() > 1 and np.ptp(r[among]) > 0 else 0.0
        if normalize and spread > 0:
            found[i] /= spread + 1e-6
    return torch.from_numpy(found)


def whitened(values: Tensor, mask: Tensor) -> Tensor:
    """Return REINFORCE++'s normalization over tokens, by the biased variance, at least 1e-8."""
    centred = values - mean(values, mask)
    return centred * mean(centred**2, mask).clamp(min=1e-8).rsqrt() * mask


def gdpo(case: Case, part_weights: list[float]) -> Tensor:
    parts = [
        w * per_prompt(part, case.groups, leave_one_out=True, normalize=True)
        for w, part in zip(part_weights, case.parts, strict=True)
    ]
    total = torch.stack(parts).sum(0)
    return (total - total.mean()) / total.std()


def overlong(lengths: Tensor, *, limit: int, buffer: int, penalty: float) -> Tensor:
    return torch.clamp(-(lengths - (limit - buffer)) / buffer * penalty, max=0)


def gae(case: Case, rewards: Tensor, *, discount: float, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return advantages and returns by the definition, A_t = Σ (γλ)^k δ_{t+k} over trained tokens;
    `share` is λ, [B]."""
    advantages = torch.zeros_like(case.x)
    for row in range(len(case.x)):
        places = torch.nonzero(case.mask[row])[:, 0].tolist()
        v = [float(case.values[0, row, t]) for t in places] + [0.0]
        r = [0.0] * len(places)
        if places:
            r[-1] = float(rewards[row])
        deltas = [r[i] + discount * v[i + 1] - v[i] for i in range(len(places))]
        for i, t in enumerate(places):
            powers = [(discount * float(share[row])) ** k for k in range(len(places) - i)]
            advantages[row, t] = sum(w * d for w, d in zip(powers, deltas[i:], strict=True))
    return advantages, advantages + case.values[0]


def divergences(case: Case) -> dict[str, Tensor]:
    """Return the means of NeMo RL's three divergences of trainer and generator."""

    def k3(of: Tensor, other: Tensor) -> Tensor:
        return (other - of).exp() - 1 - (other - of)

    m = torch.log(0.5 * case.p.exp() + 0.5 * case.b.exp())
    js = 0.5 * ((case.p - m).exp() - (case.p - m) - 1) + 0.5 * (
        (case.b - m).exp() - (case.b - m) - 1
    )
    return {
        "gen_kl_error": mean(k3(case.b, case.p), case.mask),
        "policy_kl_error": mean(k3(case.p, case.b), case.mask),
        "js_divergence_error": mean(js, case.mask),
    }
