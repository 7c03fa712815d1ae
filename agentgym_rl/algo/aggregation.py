"""The weights that make a loss exact under any packing, micro-batching and number of ranks, and the
metrics of a batch as sums and counts, so that merging is exact, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor


class Tally:
    """A collection of means (total and count), counts and maxima by metric name."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[float, float]] = {}
        self._counts: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

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

    def parts(self) -> tuple[Mapping[str, tuple[float, float]], ...]:
        """Return plain dictionaries to send to another rank; see `merged`."""
        wide = [{k: (v, 0.0) for k, v in d.items()} for d in (self._counts, self._maxima)]
        return (dict(self._means), *wide)

    @classmethod
    def merged(cls, ranks: Sequence[tuple[Mapping[str, tuple[float, float]], ...]]) -> Tally:
        """Return the tally of all ranks' `parts`."""
        tally = cls()
        for means, counts, maxima in ranks:
            for name, (total, count) in means.items():
                tally.mean(name, total, count)
            for name, (number, _) in counts.items():
                tally.count(name, number)
            for name, (value, _) in maxima.items():
                tally.maximum(name, value)
        return tally

    def values(self) -> dict[str, float]:
        """Return the metrics by name; means of no observations are left out."""
        means = {name: total / count for name, (total, count) in self._means.items() if count}
        return {**means, **self._counts, **self._maxima}


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
