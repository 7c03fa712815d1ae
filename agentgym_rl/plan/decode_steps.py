"""How long decode steps of a recorded run took, from the times of its tokens.

Tokens of one decode step have the very same time, and two engines never do: so the times say which
requests ran together, and where, though nobody wrote that down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from agentgym_rl.core.trajectory import Trajectory

from .rates import EngineRates

SLOWEST = 0.95
"""Quantile above which a step was held up by something else, and does not count."""
ENOUGH = 30
"""Steps that a rate needs."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Arrays over steps that followed at once on another one of the same engine."""

    ends_s: Floats
    seconds: Floats
    steps: Floats
    """How many: 1, or those of a whole turn where more is not known (see `arrivals`)."""
    requests: Floats
    """Summed over the steps."""
    prefills: Floats
    """Requests that had their first token in them."""
    prefill_tokens: Floats

    def only(self, mask: npt.NDArray[np.bool_]) -> DecodeSteps:
        """Those that `mask` chooses."""
        return DecodeSteps(*(getattr(self, name)[mask] for name in self.__slots__))

    def __len__(self) -> int:
        return len(self.ends_s)


class _Steps:
    """Token times joined to engines: those of one turn are of one engine, so what shares a time
    with them is, too."""

    def __init__(self) -> None:
        self.parent: dict[float, float] = {}
        self.count: defaultdict[float, int] = defaultdict(int)
        self.first: defaultdict[float, int] = defaultdict(int)
        self.tokens: defaultdict[float, int] = defaultdict(int)

    def add(self, times: Sequence[float], prefill_tokens: int) -> None:
        for time_s in times:
            self.count[time_s] += 1
            self.parent.setdefault(time_s, time_s)
            self._join(times[0], time_s)
        self.first[times[0]] += 1
        self.tokens[times[0]] += prefill_tokens

    def root(self, time_s: float) -> float:
        while self.parent[time_s] != time_s:
            self.parent[time_s] = time_s = self.parent[self.parent[time_s]]
        return time_s

    def _join(self, one: float, other: float) -> None:
        self.parent[self.root(one)] = self.root(other)


def decode_steps(episodes: Iterable[Trajectory], *, prefix_cache: bool) -> DecodeSteps:
    """The decode steps of a run, in order of engine and time."""
    steps = _Steps()
    for times_s, prefill_tokens in turns_of(episodes, prefix_cache=prefix_cache):
        steps.add(times_s, prefill_tokens)
    engines: defaultdict[float, list[float]] = defaultdict(list)
    for time_s in sorted(steps.count):
        engines[steps.root(time_s)].append(time_s)
    found: list[tuple[float, ...]] = []
    for times in engines.values():
        for start, end in pairwise(times):
            joined = steps.first[end]
            if steps.count[end] > joined:  # a request that ran before: so the engine never stopped
                tokens = steps.tokens[end]
                found.append((end, end - start, 1, steps.count[end], joined, tokens))
    columns = np.array(found, np.float64).reshape(-1, 6).T
    return DecodeSteps(*columns)


def turns_of(
    episodes: Iterable[Trajectory], *, prefix_cache: bool
) -> Iterator[tuple[list[float], int]]:
    """Of every turn: the times of its tokens, and the tokens of its prefill."""
    for episode in episodes:
        for row in episode.rows:
            before = 0
            for turn in np.unique(row.turn_ids[row.times_s > 0]).tolist():
                places = np.flatnonzero((row.turn_ids == turn) & (row.times_s > 0))
                context = int(places[0])
                yield row.times_s[places].tolist(), context - before if prefix_cache else context
                before = int(places[-1]) + 1


def engine_rates(steps: DecodeSteps, *, prefix_cache: bool) -> EngineRates:
    """Least squares over steps that nothing else held up.

    Raises:
        ValueError: there are too few.
    """
    plain = steps.only(steps.prefills == 0)
    joined = steps.only(steps.prefills > 0)
    if len(plain) < ENOUGH or len(joined) < ENOUGH:
        raise ValueError(
            f"{len(plain)} decode steps and {len(joined)} with prefills; {ENOUGH} of each are "
            "needed: calibrate on a longer run"
        )
    plain = plain.only(plain.seconds <= np.quantile(plain.seconds, SLOWEST))
    step_s, each_s = line(plain.requests, plain.seconds)
    rest = joined.seconds - step_s - each_s * joined.requests
    kept = rest <= np.quantile(rest, SLOWEST)
    prefill_s, token_s = line(joined.prefill_tokens[kept], rest[kept])
    return EngineRates(
        step_s=step_s,
        step_s_per_request=each_s,
        prefill_s=prefill_s,
        prefill_s_per_token=token_s,
        prefix_cache=prefix_cache,
    )


def line(x: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope of least squares, neither negative."""
    slope = float(np.cov(x, y)[0, 1] / np.var(x, ddof=1)) if np.ptp(x) > 0 else 0.0
    intercept = float(y.mean() - slope * x.mean())
    if slope < 0:
        return max(float(y.mean()), 0.0), 0.0
    if intercept < 0:
        return 0.0, max(float((x * y).sum() / (x * x).sum()), 0.0)
    return intercept, slope
