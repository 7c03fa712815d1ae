"""What an engine's decode steps took, where only the arrival of its tokens was recorded.

vLLM does not say in which decode step a token was sampled, and sends several at a time. What is
left are whole turns: from its first token to its last one a turn waits for as many steps as it has
further tokens, each slowed down by the requests that ran then and by the prefills that came in
between.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agentgym_rl.core.trajectory import Trajectory

from .decode_steps import ENOUGH, SLOWEST, DecodeSteps, Floats, turns_of
from .rates import EngineRates

_SHORTEST = 4
"""Tokens of a turn that says something."""
_SPEEDS = tuple(round(0.02 * n, 2) for n in range(10, 51))
"""Of an engine while the trainer computes, as shares of its own: those that are tried."""


def arrived_turns(
    episodes: Iterable[Trajectory], *, prefix_cache: bool, num_servers: int
) -> DecodeSteps:
    """The turns of a run, each as so many decode steps, in the order in which they began.

    Which of several engines a turn ran on is not known: each is taken to have had its share of
    requests and prefills.
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
    """Seconds of each interval that come after a mark (sorted), summed over all marks."""
    sums = np.concatenate(([0.0], np.cumsum(marks)))

    def until(times: Floats) -> Floats:
        before = np.searchsorted(marks, times, side="right")
        return before * times - sums[before]

    return until(end) - until(start)


def arrival_rates(
    turns: DecodeSteps, computing: Floats, *, prefix_cache: bool
) -> tuple[EngineRates, float]:
    """The rates of an engine alone, and its speed while the trainer computes, as a share of that:
    least squares over turns that nothing else held up, none of the rates negative.

    `computing`: [turns] share of each in which the trainer did.

    Raises:
        ValueError: there are too few.
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
        factors = _non_negative(stretched, turns.seconds)
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


def _non_negative(columns: Floats, values: Floats) -> Floats:
    """Least squares; a column whose factor would be negative is left out, the worst one first."""
    factors = np.zeros(columns.shape[1])
    used = [i for i in range(columns.shape[1]) if columns[:, i].any()]
    while used:
        found = np.linalg.lstsq(columns[:, used], values, rcond=None)[0]
        # In seconds of its own column: the columns have different units.
        shares = found * columns[:, used].mean(axis=0)
        if shares.min() >= 0:
            factors[used] = found
            break
        del used[int(shares.argmin())]
    return factors
