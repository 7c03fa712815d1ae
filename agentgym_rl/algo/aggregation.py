"""The weights that make a loss exact under any packing, micro-batching and number of ranks, and the
metrics of a batch as sums and counts, so that merging is exact, too; among them the mismatch of
the trainer's and the engine's log-probs, overall and by staleness.

On fresh tokens the two differ only by rounding. A multiplicative error away from 1 at staleness 0
is a bug in one of them (or KV of older weights, under `interrupt = "keep"`), not a lag.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .inputs import BehaviorWeights


class Tally:
    """A collection of means (total and count), counts, maxima and minima by metric name."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[float, float]] = {}
        self._counts: dict[str, float] = {}
        self._maxima: dict[str, float] = {}
        self._minima: dict[str, float] = {}

    def mean(self, name: str, total: float, count: float) -> None:
        """Add `count` observations that sum to `total`."""
        before = self._means.get(name, (0.0, 0.0))
        self._means[name] = (before[0] + float(total), before[1] + float(count))

    def count(self, name: str, number: float) -> None:
        """Add to a plain sum."""
        self._counts[name] = self._counts.get(name, 0.0) + float(number)

    def maximum(self, name: str, value: float) -> None:
        """Keep the largest value seen."""
        self._maxima[name] = max(self._maxima.get(name, float("-inf")), float(value))

    def minimum(self, name: str, value: float) -> None:
        """Keep the smallest value seen."""
        self._minima[name] = min(self._minima.get(name, float("inf")), float(value))

    def parts(self) -> tuple[Mapping[str, tuple[float, float]], ...]:
        """Return plain dictionaries to send to another rank; see `merged`."""
        others = (self._counts, self._maxima, self._minima)
        wide = [{k: (v, 0.0) for k, v in d.items()} for d in others]
        return (dict(self._means), *wide)

    @classmethod
    def merged(cls, ranks: Sequence[tuple[Mapping[str, tuple[float, float]], ...]]) -> Tally:
        """Return the tally of all ranks' `parts`."""
        tally = cls()
        for means, counts, maxima, minima in ranks:
            for name, (total, count) in means.items():
                tally.mean(name, total, count)
            for name, (number, _) in counts.items():
                tally.count(name, number)
            for name, (value, _) in maxima.items():
                tally.maximum(name, value)
            for name, (value, _) in minima.items():
                tally.minimum(name, value)
        return tally

    def values(self) -> dict[str, float]:
        """Return the metrics by name; means of no observations are left out."""
        means = {name: total / count for name, (total, count) in self._means.items() if count}
        return {**means, **self._counts, **self._maxima, **self._minima}


Aggregation = Literal["token", "sequence", "constant"]


def aggregation_weights(
    episodes: Tensor,  # [N] int64, episode of the token
    tokens_per_episode: Tensor,  # [E] trained tokens of each episode, all its rows
    *,
    aggregation: Aggregation,
    num_trained_tokens: int,
    num_episodes: int,
    max_tokens: int,
) -> Tensor:
    """Return [N] float64, the weight of each token's loss, so that losses are only ever summed.

    The counts are those of the complete batch, over all ranks; `num_episodes` counts episodes with
    a trained token. `token`: 1/tokens, DAPO, Yu et al. 2025 (https://arxiv.org/abs/2503.14476).
    `sequence`: mean over episodes of their token mean, GRPO, Shao et al. 2024
    (https://arxiv.org/abs/2402.03300). `constant`: 1/(episodes · max_tokens), Dr. GRPO, Liu et al.
    2025 (https://arxiv.org/abs/2503.20783).
    """
    if aggregation == "token":
        return torch.full(episodes.shape, 1.0 / max(num_trained_tokens, 1), dtype=torch.float64)
    if aggregation == "sequence":
        return 1.0 / (tokens_per_episode.double()[episodes] * max(num_episodes, 1))
    constant = 1.0 / (max(num_episodes, 1) * max_tokens)
    return torch.full(episodes.shape, constant, dtype=torch.float64)


def tally_mismatch(
    tally: Tally,
    proximal_logprobs: Tensor,  # [N]
    behavior_logprobs: Tensor,  # [N]
    staleness: Tensor,  # [N] int64, versions between sampling and this batch
    spans_versions: Tensor,  # [N] bool, True if an update happened within the token's turn
) -> None:
    """Add `mismatch/…` and `policy/approx_entropy` of all trained tokens.

    `token_mult_prob_error` is the mean of exp|p − b|. Tokens of turns that span a weight update
    have a separate bucket: their staleness differs within one request. Tokens whose p − b is not
    finite are in `mismatch/num_nonfinite` only. One outlier can dominate the mean of exponentials;
    `mean_abs`, in nats, shows how far tokens moved in general.
    """
    difference = (proximal_logprobs - behavior_logprobs).double()
    finite = torch.isfinite(difference)
    tally.count("mismatch/num_nonfinite", float((~finite).sum()))
    difference, p = difference[finite], proximal_logprobs.double()[finite]
    if not len(difference):
        return
    gap, ratio, count = difference.abs(), difference.exp(), len(difference)
    error = gap.exp()
    tally.mean("mismatch/token_mult_prob_error", float(error.sum()), count)
    tally.mean("mismatch/mean_abs", float(gap.sum()), count)
    tally.maximum("mismatch/max_abs", float(gap.max()))
    tally.mean("mismatch/sampling_importance_ratio", float(ratio.sum()), count)
    tally.mean("policy/approx_entropy", float(-(ratio * p).sum()), count)
    _tally_divergences(tally, difference, p)
    buckets = torch.where(spans_versions[finite], -1, staleness[finite])
    for bucket in np.unique(np.asarray(buckets)).tolist():
        chosen = error[buckets == bucket]
        name = "several_versions" if bucket == -1 else f"staleness_{bucket}"
        tally.mean(f"mismatch/token_mult_prob_error/{name}", float(chosen.sum()), len(chosen))
        tally.count(f"mismatch/num_tokens/{name}", len(chosen))
        if bucket == 0:
            fresh = gap[buckets == bucket]
            tally.mean(f"mismatch/mean_abs/{name}", float(fresh.sum()), len(fresh))


def _tally_divergences(tally: Tally, difference: Tensor, p: Tensor) -> None:
    """Add k3 estimates, in nats, of KL(behavior ‖ proximal), of the reverse KL, and of the
    Jensen-Shannon divergence, which compares both policies with their mean m."""

    def k3(log_ratio: Tensor) -> Tensor:
        return log_ratio.exp() - log_ratio - 1.0

    m = torch.logaddexp(p, p - difference) - math.log(2)
    js = 0.5 * k3(p - m) + 0.5 * k3(p - difference - m)
    tally.mean("mismatch/kl", float(k3(difference).sum()), len(p))
    tally.mean("mismatch/kl_reverse", float(k3(-difference).sum()), len(p))
    tally.mean("mismatch/js", float(js.sum()), len(p))


def tally_weights(tally: Tally, weights: BehaviorWeights) -> None:
    """Add `policy/behavior_weight_{mean,max,masked}`: the applied weights, and the share
    dropped."""
    if not len(weights.weight):
        return
    tally.mean("policy/behavior_weight_mean", float(weights.weight.sum()), len(weights.weight))
    tally.maximum("policy/behavior_weight_max", float(weights.weight.max()))
    tally.mean("policy/behavior_weight_masked", float(weights.masked.sum()), len(weights.masked))
