"""The ratings of players by the results of their games."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations


@dataclass(frozen=True, slots=True)
class Rating:
    """An Elo rating, relative to the first player's."""

    elo: float
    ci: tuple[float, float] | None
    """The 95 % interval; None for the first player, whose rating is 0."""


_ELO = 400 / math.log(10)
"""The points by which the odds grow e-fold: 400 points are odds of 10 to 1."""
_RESAMPLES = 400
_PASSES, _CLOSE = 2000, 1e-7
"""The most passes, and the relative change of all strengths at which they end."""
Won = dict[tuple[int, int], float]
"""The points that a player won from another one: 1 for a game, and half of it for a draw."""


def ratings(tasks: Sequence[Won], num_players: int, *, seed: int = 0) -> list[Rating]:
    """Return the maximum-likelihood ratings given the results of the games of each task.

    Bradley and Terry 1952 (https://doi.org/10.2307/2334029), draws as half a win each, with one
    drawn game between any two players added, so that a player who always won has a finite rating.
    The intervals are percentiles over resampled tasks, since games of a task are alike.
    """
    found = _strengths(tasks, num_players)
    chance = random.Random(seed)
    drawn = [
        _strengths(chance.choices(tasks, k=len(tasks)), num_players) for _ in range(_RESAMPLES)
    ]
    rated = [Rating(0.0, None)]
    for player in range(1, num_players):
        each = sorted(_ELO * (strengths[player] - strengths[0]) for strengths in drawn)
        ends = (each[round(0.025 * (_RESAMPLES - 1))], each[round(0.975 * (_RESAMPLES - 1))])
        rated.append(Rating(_ELO * (found[player] - found[0]), ends))
    return rated


def _strengths(tasks: Sequence[Won], num_players: int) -> list[float]:
    """Return the log strengths by the iteration of Hunter 2004 (MM algorithms for generalized
    Bradley-Terry models), which increases the likelihood at each pass."""
    won: Counter[tuple[int, int]] = Counter(dict.fromkeys(permutations(range(num_players), 2), 0.5))
    for points in tasks:
        won.update(points)
    strengths = [1.0] * num_players
    for _ in range(_PASSES):
        before = strengths
        strengths = [
            sum(won[i, j] for j in range(num_players) if j != i)
            / sum(
                (won[i, j] + won[j, i]) / (before[i] + before[j])
                for j in range(num_players)
                if j != i
            )
            for i in range(num_players)
        ]
        scale = math.exp(math.fsum(map(math.log, strengths)) / num_players)
        strengths = [strength / scale for strength in strengths]
        if all(abs(a / b - 1) < _CLOSE for a, b in zip(strengths, before, strict=True)):
            break
    return [math.log(strength) for strength in strengths]
