"""The estimates of an evaluation with their confidence: means, pass@k, paired differences, ratings.

Tasks are the sampling unit: episodes of one task are correlated, so errors are clustered by task
(Miller 2024, arXiv:2411.00640). All intervals are two-sided, 95 %.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import NormalDist

_Z = NormalDist().inv_cdf(0.975)
_ROUNDING = 1e-9
"""The tolerance of a success: rewards are sums over steps, and ten times 0.1 is a success of 1."""

Scores = Mapping[str, Sequence[float]]
"""The scores of each task's episodes, by the task's id."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % confidence interval; None: a single task with unbounded scores gives
    no information about other tasks."""

    value: float
    ci: tuple[float, float] | None
    num_tasks: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that at least one of k episodes succeeds, if c of n succeeded.

    The unbiased estimator 1 - C(n-c, k) / C(n, k), Chen et al. 2021 (arXiv:2107.03374).
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} successes in {n} episodes: expected c <= n, 1 <= k <= n")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean(scores: Scores) -> Estimate:
    """Return the mean over episodes; standard error clustered by task (Miller 2024, section 2.2).

    Scores that all lie in [0, 1] get Wilson's interval (Wilson 1927), for the number of
    observations that would give that standard error: with one episode per task and scores of 0
    and 1 it is Wilson's own. So a model that solved all of 20 tasks is not reported as perfect.

    Raises:
        ValueError: there are no scores.
    """
    clusters = [values for values in scores.values() if values]
    count = sum(map(len, clusters))
    if not count:
        raise ValueError("the mean of no scores")
    value = sum(map(sum, clusters)) / count
    # a cluster's deviations add up before they are squared: its episodes are not independent
    squares = sum((sum(values) - len(values) * value) ** 2 for values in clusters)
    error = math.sqrt(squares) / count
    bounded = all(0 <= score <= 1 for values in clusters for score in values)
    return Estimate(value, _interval(value, error, len(clusters), bounded), len(clusters))


def pass_at(scores: Scores, k: int, *, success: float) -> Estimate | None:
    """Return pass@k, the mean over the tasks that have k scores; None: there is no such task.

    A score of at least `success` is a success.
    """
    found = {
        task: [pass_at_k(len(values), sum(score >= success - _ROUNDING for score in values), k)]
        for task, values in scores.items()
        if len(values) >= k
    }
    return mean(found) if found else None


def paired_difference(scores: Scores, first: Scores) -> Estimate | None:
    """Return the mean of `scores` minus the mean of `first`, over their common tasks.

    The differences of each task's means are averaged, which removes the shared difficulty of
    tasks from the error (Miller 2024, section 4.2). None: there is no common task.
    """
    tasks = [task for task in scores if scores[task] and first.get(task)]
    if not tasks:
        return None
    differences = [_mean(scores[task]) - _mean(first[task]) for task in tasks]
    value = _mean(differences)
    error = math.sqrt(sum((d - value) ** 2 for d in differences)) / len(tasks)
    return Estimate(value, _interval(value, error, len(tasks), bounded=False), len(tasks))


def _interval(
    value: float, error: float, clusters: int, bounded: bool
) -> tuple[float, float] | None:
    if not bounded:
        if clusters < 2:
            return None
        # the spread of a sample around its own mean is too small by this factor
        half = _Z * error * math.sqrt(clusters / (clusters - 1))
        return value - half, value + half
    spread = value * (1 - value)
    n = spread / error**2 if error > 0 else clusters
    centre = (value + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(spread / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
