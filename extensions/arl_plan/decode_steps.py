"""The durations of the decode steps of a recorded run, derived from the times of its tokens.

Tokens of one decode step have exactly the same time, and tokens of two engines never do. So the
times show which requests ran together and on which engine, although neither is recorded.

vLLM does not report the decode step in which a token was sampled, and sends several tokens at a
time: only their arrival is recorded. Complete turns can still be used: from its first token to its
last one, a turn waits for as many steps as it has further tokens. Each step is slowed down by the
requests that run at the time and by the prefills in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from agentgym_rl.core import NOT_SAMPLED, Trajectory

from .rates import EngineRates

_SHORTEST = 4
"""The smallest number of tokens of a turn that counts."""
_SPEEDS = tuple(round(0.02 * n, 2) for n in range(10, 51))
"""The tried speeds of an engine while the trainer computes, as shares of its undisturbed speed."""


def arrived_turns(
    episodes: Iterable[Trajectory], *, prefix_cache: bool, num_servers: int
) -> DecodeSteps:
    """Return the turns of a run, each as a number of decode steps, sorted by their start.

    The engine of a turn is not recorded: with several engines, each is assumed to have had an equal
    share of requests and prefills.
    """
    found: list[tuple[float, float, int, int]] = []
    for times_s, prefill_tokens in turns_of(episodes, prefix_cache=prefix_cache):
        found.append((times_s[0], times_s[-1], len(times_s), prefill_tokens))
    found.sort()
    starts, ends, tokens, prefills = np.array(found, np.float64).reshape(-1, 4).T
    finished = np.sort(ends)
    sums = np.concatenate(([0.0], np.cumsum(prefills)))
    long = (tokens >= _SHORTEST) & (ends > starts)
    start, end, steps = starts[long], ends[long], tokens[long] - 1
    active_s = _elapsed(starts, start, end) - _elapsed(finished, start, end)
    first, last = (np.searchsorted(starts, times, side="right") for times in (start, end))
    return DecodeSteps(
        ends_s=end,
        seconds=end - start,
        steps=steps,
        requests=steps * active_s / (end - start) / num_servers,
        prefills=(last - first) / num_servers,
        prefill_tokens=(sums[last] - sums[first]) / num_servers,
    )


def _elapsed(marks: Floats, start: Floats, end: Floats) -> Floats:
    """Return the seconds of each interval that lie after a mark (sorted), summed over all marks."""
    sums = np.concatenate(([0.0], np.cumsum(marks)))

    def until(times: Floats) -> Floats:
        before = np.searchsorted(marks, times, side="right")
        return before * times - sums[before]

    return until(end) - until(start)


def arrival_rates(
    turns: DecodeSteps, computing: Floats, *, prefix_cache: bool
) -> tuple[EngineRates, float]:
    """Fit the rates of an undisturbed engine, and its relative speed while the trainer computes.

    The fit is least squares over turns that nothing else held up; no rate is negative.
    `computing`: [turns] the share of each turn in which the trainer computed.

    Raises:
        ValueError: there are too few turns.
    """
    if len(turns) < ENOUGH:
        raise ValueError(
            f"{len(turns)} turns of {_SHORTEST} tokens or more; {ENOUGH} are needed: calibrate on "
            "a longer run"
        )
    each = turns.seconds / turns.steps
    usual = each <= np.quantile(each, SLOWEST)
    turns, computing = turns.only(usual), computing[usual]
    columns = np.stack([turns.steps, turns.requests, turns.prefills, turns.prefill_tokens], axis=1)
    best, found, speed = np.inf, np.zeros(4), 1.0
    for slowed in _SPEEDS if np.ptp(computing) > 0 else (1.0,):
        stretched = columns / (1 - computing * (1 - slowed))[:, None]
        factors = non_negative(stretched, turns.seconds)
        missed = float(((turns.seconds - stretched @ factors) ** 2).sum())
        if missed < best:
            best, found, speed = missed, factors, slowed
    step_s, each_s, prefill_s, token_s = found.tolist()
    rates = EngineRates(
        step_s=step_s,
        step_s_per_request=each_s,
        prefill_s=prefill_s,
        prefill_s_per_token=token_s,
        prefix_cache=prefix_cache,
    )
    return rates, speed


def non_negative(columns: Floats, values: Floats) -> Floats:
    """Solve least squares, leaving out columns with negative factors, the worst one first."""
    factors = np.zeros(columns.shape[1])
    used = [i for i in range(columns.shape[1]) if columns[:, i].any()]
    while used:
        found = np.linalg.lstsq(columns[:, used], values, rcond=None)[0]
        # Compared in seconds, since the columns have different units.
        shares = found * columns[:, used].mean(axis=0)
        if shares.min() >= 0:
            factors[used] = found
            break
        del used[int(shares.argmin())]
    return factors


SLOWEST = 0.95
"""The quantile above which a step was held up by something else, and does not count."""
ENOUGH = 30
"""The number of steps needed to fit a rate."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """The steps that directly followed another step of the same engine, as arrays over steps."""

    ends_s: Floats
    seconds: Floats
    steps: Floats
    """The number of steps: 1, or those of a turn if single steps are not known (see `arrivals`)."""
    requests: Floats
    """The running requests, summed over the steps."""
    prefills: Floats
    """The requests whose first token came in these steps."""
    prefill_tokens: Floats

    def only(self, mask: npt.NDArray[np.bool_]) -> DecodeSteps:
        """Return the steps that `mask` selects."""
        return DecodeSteps(*(getattr(self, name)[mask] for name in self.__slots__))

    def __len__(self) -> int:
        return len(self.ends_s)


class _Steps:
    """The token times grouped by engine: tokens of one turn come from one engine, and so do all
    tokens that share a time with them."""

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
    """Return the decode steps of a run, in order of engine and time."""
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
            if steps.count[end] > joined:  # one request ran before: the engine did not stop
                tokens = steps.tokens[end]
                found.append((end, end - start, 1, steps.count[end], joined, tokens))
    columns = np.array(found, np.float64).reshape(-1, 6).T
    return DecodeSteps(*columns)


def turns_of(
    episodes: Iterable[Trajectory], *, prefix_cache: bool
) -> Iterator[tuple[list[float], int]]:
    """Yield for every turn the times of its tokens and the number of tokens of its prefill.

    With `prefix_cache`, a turn whose version also sampled the turn before it has a prefill of the
    tokens after that, and a group's prompt is computed once for each version.
    """
    prompts: dict[tuple[str, int], int] = {}
    for episode in sorted(episodes, key=_begin_s):
        for row in episode.rows:
            before, of = 0, NOT_SAMPLED
            for turn in np.unique(row.turn_ids[row.times_s > 0]).tolist():
                places = np.flatnonzero((row.turn_ids == turn) & (row.times_s > 0))
                context, versions = int(places[0]), row.policy_versions[places]
                prompt = (episode.group_id, int(versions[0]))
                known = before if of == versions[0] else 0
                if before == 0:
                    known = min(prompts.get(prompt, 0), context)
                    prompts.setdefault(prompt, context)
                yield row.times_s[places].tolist(), context - known if prefix_cache else context
                before, of = int(places[-1]) + 1, int(versions[-1])


def _begin_s(episode: Trajectory) -> float:
    """Return the time of the first sampled token."""
    times = [row.times_s[row.times_s > 0] for row in episode.rows]
    return min((float(found.min()) for found in times if len(found)), default=0.0)


def engine_rates(steps: DecodeSteps, *, prefix_cache: bool) -> EngineRates:
    """Fit the rates by least squares over steps that nothing else held up.

    Raises:
        ValueError: there are too few steps.
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
    """Return the intercept and slope of least squares, neither negative."""
    slope = float(np.cov(x, y)[0, 1] / np.var(x, ddof=1)) if np.ptp(x) > 0 else 0.0
    intercept = float(y.mean() - slope * x.mean())
    if slope < 0:
        return max(float(y.mean()), 0.0), 0.0
    if intercept < 0:
        return 0.0, max(float((x * y).sum() / (x * x).sum()), 0.0)
    return intercept, slope
