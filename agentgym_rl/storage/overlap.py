"""The overlap: the share of tokens that were sampled while the trainer computed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from agentgym_rl.core import Trajectory

COMPUTE_PHASES = ("proximal", "values", "forward_backward", "optimizer", "critic")
"""The trainer phases that count as training for `overlap`."""


class Overlap:
    """The share of sampled tokens whose decode step ended while the trainer computed.

    Engines and trainer take times from CLOCK_MONOTONIC, which all processes of a machine share.
    Tokens of batch 0 are left out: the trainer has nothing to do yet.
    """

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._inside = 0
        self._tokens = 0

    def add_intervals(self, intervals: Sequence[tuple[str, float, float]]) -> None:
        """Add a step's trainer phases; steps come in order and do not overlap each other."""
        for phase, start, end in sorted(intervals, key=lambda item: item[1]):
            if phase in COMPUTE_PHASES:
                self._starts.append(start)
                self._ends.append(end)

    def add_episodes(self, episodes: Sequence[Trajectory]) -> float:
        """Count a batch's tokens; return the batch's own share (NaN without tokens).

        Call this before the batch itself is trained: its tokens were sampled before that.
        """
        times = [row.times_s for episode in episodes for row in episode.rows]
        stamps = np.concatenate(times) if times else np.zeros(0)
        stamps = stamps[stamps > 0]
        inside = 0
        if self._starts and len(stamps):
            # Only the intervals since the oldest stamp: there may be many.
            first = max(bisect_right(self._starts, float(stamps.min())) - 1, 0)
            slot = np.searchsorted(np.array(self._starts[first:]), stamps, side="right") - 1
            ends = np.array(self._ends[first:])[np.maximum(slot, 0)]
            inside = int(((slot >= 0) & (stamps <= ends)).sum())
        self._inside += inside
        self._tokens += len(stamps)
        return inside / len(stamps) if len(stamps) else math.nan

    @property
    def share(self) -> float:
        """Return the share over the complete run so far; 0 before any token was counted."""
        return self._inside / self._tokens if self._tokens else 0.0
