"""Groups at once, adapted while a run goes on (`rollout.concurrency = "adaptive"`).

How many groups are played at once, adapted to what engines and trainer are seen to do.

More while the trainer waits, the limit is what keeps groups from starting, engines have nobody in
line, and the last raise made them sample faster. Fewer when requests stand in line, when they are
put back for want of KV memory, or when groups become too old to train. All counts are groups;
times are of whatever clock the caller has: `arl plan` has a virtual one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from typing import Protocol

from agentgym_rl.config import RolloutConfig
from agentgym_rl.core.engine import EngineLoad
from agentgym_rl.runtime.pausable_clock import ENGINES

from .buffer import Buffer

log = logging.getLogger(__name__)

METRIC = "rollout/max_concurrent"
_SOONEST_S, _LATEST_S = 0.5, 10.0
"""Between two looks: often enough for a verdict, and no burden where groups take minutes."""
_LOOKS = 8
"""Looks that a verdict should rest on."""


class Loads(Protocol):
    """Who knows how busy the engines are (see engine_loads.EngineLoads)."""

    async def read(self) -> EngineLoad | None:
        """All in service; None where they do not answer."""
        ...


class TrainerSide(Protocol):
    """What is asked of a controller."""

    rollout_metrics: dict[str, float]

    @property
    def trainer_waits(self) -> bool: ...


async def adapt(
    config: RolloutConfig, buffer: Buffer, controller: TrainerSide, loads: Loads
) -> None:
    """Look at the engines now and then, and keep `buffer.limit` where it should be, until
    cancelled; returns at once where the configuration says a fixed number."""
    if config.concurrency == "fixed":
        return
    concurrency = Concurrency(config)
    buffer.limit = concurrency.limit
    controller.rollout_metrics[METRIC] = buffer.limit
    clock = ENGINES.time  # in their sleep they say nothing of how busy they would be
    pause_s, since_s = _SOONEST_S, clock()
    while True:
        await asyncio.sleep(pause_s)
        if ENGINES.asleep:
            continue
        load = await loads.read()
        if load is None:
            concurrency.restart()
            continue
        dropped = buffer.dropped
        verdict = concurrency.observe(
            Look(
                clock(),
                load,
                running=buffer.running,
                ended=buffer.accepted + sum(dropped.values()),
                stale=dropped["stale"],
                has_room=buffer.room >= 1,
                trainer_waits=controller.trainer_waits,
            )
        )
        if verdict is None:
            continue
        pause_s = min(max((clock() - since_s) / _LOOKS, _SOONEST_S), _LATEST_S)
        since_s = clock()
        changed = verdict.limit != verdict.before
        what = f"{verdict.limit} groups at once" + (f", not {verdict.before}" if changed else "")
        log.log(logging.INFO if changed else logging.DEBUG, "%s: %s", what, verdict.reason)
        controller.rollout_metrics[METRIC] = verdict.limit
        if changed:
            buffer.limit = verdict.limit
            buffer.changes.notify()


_LEAST_LOOKS = 4
"""Looks at the engines that a verdict rests on, at least."""
_ENOUGH = 16
"""Groups that ended, a verdict on many rests on: of a few, shares are accidents."""
_BINDING = 0.5
"""Share of the time in which the limit must be what keeps groups from starting."""
_WAITING = 0.05
"""Share of the time in which the trainer must wait, for more to be of use."""
_PATIENCE = 2
"""Stretches in a row that show too much of something, before it is lowered."""
_LINE = (0.5, 1.0)
"""Requests in line for each that runs: with more than the first nothing is raised, with more than
the second it is lowered. Between them it stays. A short line is of use: lengths
differ, and a place that falls free is taken at once."""
_PUT_BACK = (0.5, 1.0)
"""The same for requests that were put back, for each episode that ended."""
_STALE = (0.2, 0.3)
"""The same for groups that were too old, as a share of those that ended: engines and tools with
time to spare may well waste some of it."""
_GAIN = 0.05
"""By how much twice as many groups must raise tokens a second."""
_FASTER, _SLOWER = 1.25, 0.8
"""Factors of a step up, once the first steps (twice as many each) are over, and of a step down."""
_TRIALS = 2
"""Stretches in which a raise may show that it was of use."""
_REMEMBERED = 12
"""Stretches for which a limit that was too high is not tried again."""


@dataclass(frozen=True, slots=True)
class Look:
    """Everything at one moment that a verdict may rest on."""

    now_s: float
    load: EngineLoad
    running: int
    """Groups that are played."""
    ended: int
    """Groups so far that were played to their end, whatever came of them."""
    stale: int
    """Of these, those that were too old."""
    has_room: bool
    """Whether the staleness bound would admit one more."""
    trainer_waits: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a stretch of time has shown."""

    before: int
    limit: int
    reason: str


@dataclass(slots=True)
class _Stretch:
    """What was seen between two verdicts, integrated over time."""

    first: Look
    last: Look
    looks: int = 0
    running: float = 0.0
    waiting: float = 0.0
    kv_use: float = 0.0
    bound: float = 0.0
    trainer_waits: float = 0.0

    def add(self, look: Look, limit: int) -> None:
        seconds = look.now_s - self.last.now_s
        self.running += seconds * look.load.running
        self.waiting += seconds * look.load.waiting
        self.kv_use += seconds * look.load.kv_use
        self.bound += seconds * (look.running >= limit and look.has_room)
        self.trainer_waits += seconds * look.trainer_waits
        self.last = look
        self.looks += 1

    @property
    def seconds(self) -> float:
        return max(self.last.now_s - self.first.now_s, 1e-9)

    @property
    def ended(self) -> int:
        return self.last.ended - self.first.ended

    @property
    def tokens_per_s(self) -> float:
        return (self.last.load.tokens - self.first.load.tokens) / self.seconds

    @property
    def line(self) -> float:
        """Requests in line for each that runs."""
        return self.waiting / max(self.running, 1e-9)


@dataclass(slots=True)
class _Trial:
    """A raise whose use is not shown yet."""

    before: int
    tokens_per_s: float
    """Before it."""
    best: float = 0.0
    stretches: int = 0


@dataclass
class Concurrency:
    """The limit, and what it was adapted by; see the module. Never more than what the bound on
    staleness admits, nor outside of `min_concurrent` and `max_concurrent`."""

    config: RolloutConfig
    limit: int = field(init=False)
    _stretch: _Stretch | None = None
    _trial: _Trial | None = None
    _doubles: bool = True
    """Until something was too much."""
    _too_many: int | None = None
    """A limit that was, not long ago."""
    _forget_in: int = 0
    _pressed: int = 0
    """Stretches in a row in which there was too much of something."""

    def __post_init__(self) -> None:
        self.limit = self.config.admitted_groups

    def restart(self) -> None:
        """What was seen last is no basis for a verdict any more (engines did not answer, say)."""
        self._stretch = None

    def observe(self, look: Look) -> Verdict | None:
        """Take a look into account; a verdict where enough has been seen since the last one."""
        stretch = self._stretch
        if stretch is None or look.load.engines != stretch.last.load.engines:
            if stretch is not None:  # others are there: what was too much need not be now
                self._too_many = self._trial = None
            self._stretch = _Stretch(look, look)
            return None
        stretch.add(look, self.limit)
        needed = min(self.limit, max(self.config.groups_per_batch, _ENOUGH))
        if stretch.looks < _LEAST_LOOKS or stretch.ended < needed:
            return None
        before = self.limit
        reason = self._judge(stretch)
        self._stretch = _Stretch(look, look)
        return Verdict(before, self.limit, reason)

    # ------------------------------------------------------------------ verdicts
    def _judge(self, seen: _Stretch) -> str:
        self._forget()
        episodes = max(seen.ended * self.config.group_size, 1)
        put_back = (seen.last.load.put_back - seen.first.load.put_back) / episodes
        stale = (seen.last.stale - seen.first.stale) / max(seen.ended, 1)
        pressures = (
            (
                put_back,
                _PUT_BACK,
                f"{put_back:.2f} requests put back for each episode (KV memory "
                f"{seen.kv_use / seen.seconds:.0%} full)",
            ),
            (stale, _STALE, f"{stale:.0%} of the groups became too old to train"),
            (seen.line, _LINE, f"{seen.line:.2f} requests in line for each that runs"),
        )
        too_many = [reason for found, (_, too_much), reason in pressures if found > too_much]
        self._pressed = self._pressed + 1 if too_many else 0
        if self._pressed >= _PATIENCE:
            return self._lower(_SLOWER, too_many[0])
        if self._trial is not None and (reason := self._tried(self._trial, seen)):
            return reason
        for found, (enough, _), reason in pressures:
            if found > enough:
                return reason
        return self._raise(seen)

    def _tried(self, trial: _Trial, seen: _Stretch) -> str:
        """What came of the last raise; "" where it was of use, or cannot be told any more."""
        trial.stretches += 1
        trial.best = max(trial.best, seen.tokens_per_s)
        needed = 1 + _GAIN * (self.limit / trial.before - 1)
        if trial.best >= needed * trial.tokens_per_s or not _wants_more(seen):
            self._trial = None
            return ""
        gain = f"{trial.best / max(trial.tokens_per_s, 1e-9) - 1:+.0%} tokens/s"
        if trial.stretches < _TRIALS:
            return f"{gain} since {trial.before}: looking again"
        return self._lower(trial.before / self.limit, f"{gain} from {trial.before} to {self.limit}")

    def _raise(self, seen: _Stretch) -> str:
        most = self.config.most_groups
        if self._too_many is not None:
            most = min(most, self._too_many - 1)
        if seen.trainer_waits < _WAITING * seen.seconds:
            return "the trainer does not wait"
        if seen.bound < _BINDING * seen.seconds:
            return "the bound on staleness is what keeps groups from starting"
        if self.limit >= most:
            return f"{most} is the most" + (" for now" if self._too_many is not None else "")
        factor = 2.0 if self._doubles else _FASTER
        self._trial = _Trial(self.limit, seen.tokens_per_s)
        self.limit = min(most, math.ceil(self.limit * factor))
        waits = seen.trainer_waits / seen.seconds
        return f"the trainer waits {waits:.0%} of the time, and engines have room"

    def _lower(self, factor: float, reason: str) -> str:
        """Fewer, for a while; the next raises are careful."""
        self._trial, self._doubles, self._pressed = None, False, 0
        fewer = min(math.ceil(self.limit * factor - 1e-9), self.limit - 1)
        lower = max(self.config.min_concurrent or 1, fewer)
        if lower < self.limit:
            self._too_many, self._forget_in = self.limit, _REMEMBERED
            self.limit = lower
        return reason

    def _forget(self) -> None:
        if self._too_many is not None:
            self._forget_in -= 1
            if self._forget_in <= 0:
                self._too_many = None


def _wants_more(seen: _Stretch) -> bool:
    """Whether more groups are still what all wait for."""
    return seen.trainer_waits >= _WAITING * seen.seconds and seen.bound >= _BINDING * seen.seconds
