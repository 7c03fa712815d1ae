"""What an evaluation says of a model, and how sure it is: means, pass@k, paired differences.

Tasks are the sampling unit: episodes of one task are alike, so errors are clustered by task
(Miller 2024, arXiv:2411.00640). All intervals are two-sided, 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

_Z = NormalDist().inv_cdf(0.975)
_ROUNDING = 1e-9
"""Rewards are sums of steps' rewards: ten times 0.1 is a whole success."""

Scores = Mapping[str, Sequence[float]]
"""The scores of each task's episodes, by the task's id."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % confidence interval; None: a single task whose scores may be of any size
    says nothing of others."""

    value: float
    ci: tuple[float, float] | None
    num_tasks: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that one of k episodes succeeds, of n that were played and c that succeeded.

    The unbiased estimator 1 - C(n-c, k) / C(n, k), Chen et al. 2021 (arXiv:2107.03374).
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} successes in {n} episodes: expected c <= n, 1 <= k <= n")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean(scores: Scores) -> Estimate:
    """The mean over episodes; standard error clustered by task (Miller 2024, section 2.2).

    Scores that all lie in [0, 1] get Wilson's interval (Wilson 1927), with as many observations as
    would give that standard error: with one episode a task and scores of 0 and 1 it is Wilson's
    own, and a model that solved all of 20 tasks is not said to be perfect.

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
    """pass@k: the mean over the tasks that have k scores; None: there is none.

    A score of at least `success` is a success.
    """
    found = {
        task: [pass_at_k(len(values), sum(score >= success - _ROUNDING for score in values), k)]
        for task, values in scores.items()
        if len(values) >= k
    }
    return mean(found) if found else None


def paired_difference(scores: Scores, first: Scores) -> Estimate | None:
    """By how much the mean of `scores` is above that of `first`, over the tasks of both.

    The differences of each task's means are averaged, which leaves out of the error what makes
    tasks hard for both (Miller 2024, section 4.2). None: they have no task in common.
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
        # the spread of a sample about its own mean is too small by this much
        half = _Z * error * math.sqrt(clusters / (clusters - 1))
        return value - half, value + half
    spread = value * (1 - value)
    n = spread / error**2 if error > 0 else clusters
    centre = (value + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(spread / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
