"""The number of concurrent groups, adapted to the observed load of engines and trainer
(`rollout.concurrency = "adaptive"`).

The limit rises while the trainer waits, the limit is what keeps groups from starting, engines
and sandboxes have no queue, and the last raise increased the engines' throughput. The limit falls
when requests queue, when they are preempted for lack of KV memory, when episodes queue for
sandboxes, or when groups become too old to train. All counts are groups; times come from the
caller's clock: `arl plan` has a virtual one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from agentgym_rl.config import RolloutConfig
from agentgym_rl.controller import Buffer
from agentgym_rl.core import EngineLoad
from agentgym_rl.fleet import EngineLoads
from agentgym_rl.gym import SandboxStats, Services
from agentgym_rl.run import LivePart
from agentgym_rl.runtime import ENGINE_CLOCK

from .keys import ConcurrencyKeys

log = logging.getLogger(__name__)

METRIC = "rollout/max_concurrent"
_SOONEST_S, _LATEST_S = 0.5, 10.0
"""The shortest and longest pause between two looks: often enough for a verdict, and cheap when
groups take minutes."""
_LOOKS = 8
"""The number of looks that a verdict should be based on."""


class Loads(Protocol):
    """A source that knows how busy the engines are (see fleet/loads.py)."""

    async def read(self) -> EngineLoad | None:
        """Return the load of all engines in service; None if they do not answer."""
        ...


class TrainerSide(Protocol):
    """The part of a controller that `adapt` needs."""

    rollout_metrics: dict[str, float]

    @property
    def trainer_waits(self) -> bool: ...


class Adaptation(LivePart):
    """The adaptation of a run."""

    async def adapt(self, services: Services) -> None:
        run = self.run
        loads, sandboxes = EngineLoads(run.fleet.in_service), services.sandbox_stats
        buffer = run.controller.buffer
        await adapt(run.config.rollout, buffer, run.controller, loads, sandboxes)


async def adapt(
    config: RolloutConfig,
    buffer: Buffer,
    controller: TrainerSide,
    loads: Loads,
    sandboxes: Callable[[], SandboxStats] = SandboxStats,
) -> None:
    """Look at the engines from time to time and adapt `buffer.limit`, until cancelled.

    Args:
        sandboxes: The source of the counters of the episodes' sandboxes, if they are known here.

    Returns at once if the configuration sets a fixed number."""
    if not config.part(ConcurrencyKeys).adapts:
        return
    concurrency = Concurrency(config)
    buffer.limit = concurrency.limit
    controller.rollout_metrics[METRIC] = buffer.limit
    clock = ENGINE_CLOCK.time  # sleeping engines do not show how busy they would be
    pause_s, since_s = _SOONEST_S, clock()
    while True:
        await asyncio.sleep(pause_s)
        if ENGINE_CLOCK.asleep:
            continue
        load = await loads.read()
        if load is None:
            concurrency.restart()
            continue
        dropped, places = buffer.dropped, sandboxes()
        verdict = concurrency.observe(
            Look(
                clock(),
                load,
                running=buffer.running,
                ended=buffer.accepted + sum(dropped.values()),
                stale=dropped["stale"],
                has_room=buffer.room >= 1,
                trainer_waits=controller.trainer_waits,
                sandboxes=places.in_use,
                want_sandbox=places.waiting,
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
"""The minimum number of looks at the engines for a verdict."""
_ENOUGH = 16
"""The number of ended groups for a verdict on a high limit: shares of few groups are noise."""
_BINDING = 0.5
"""The minimum share of the time in which the limit keeps groups from starting, for a raise."""
_WAITING = 0.05
"""The minimum share of the time in which the trainer waits, for a raise to be useful."""
_PATIENCE = 2
"""The number of consecutive stretches above an upper threshold before the limit is lowered."""
_LINE = (0.5, 1.0)
"""The queued requests per running request, or queued episodes per sandbox in use: above the first
value the limit is not raised, above the second it is lowered. Between the two it stays. A short
queue is useful: lengths differ, and a queued request takes a free slot at once."""
_PUT_BACK = (0.5, 1.0)
"""The same thresholds for preempted requests per ended episode."""
_STALE = (0.2, 0.3)
"""The same thresholds for groups that were too old, as a share of the ended groups: engines and
tools with idle time may waste some of it."""
_GAIN = 0.05
"""The minimum relative gain in tokens per second from twice as many groups."""
_FASTER, _SLOWER = 1.25, 0.8
"""The factors of a step up, after the first steps (a factor of 2 each), and of a step down."""
_TRIALS = 2
"""The number of stretches in which a raise may prove useful."""
_REMEMBERED = 12
"""The number of stretches for which a limit that was too high is not tried again."""


@dataclass(frozen=True, slots=True)
class Look:
    """The data of one moment on which a verdict may be based."""

    now_s: float
    load: EngineLoad
    running: int
    """The groups being played."""
    ended: int
    """The groups played to their end so far, with any result."""
    stale: int
    """The ended groups that were too old to train."""
    has_room: bool
    """Whether the staleness bound would admit one more group."""
    trainer_waits: bool
    sandboxes: int
    """The sandboxes in use."""
    want_sandbox: int
    """The episodes that wait for a sandbox."""


@dataclass(frozen=True, slots=True)
class LimitDecision:
    """The decision after a stretch of time: the limit before and after, and the reason."""

    before: int
    limit: int
    reason: str


@dataclass(slots=True)
class _Stretch:
    """The observations between two verdicts, integrated over time."""

    first: Look
    last: Look
    looks: int = 0
    running: float = 0.0
    waiting: float = 0.0
    kv_use: float = 0.0
    bound: float = 0.0
    trainer_waits: float = 0.0
    sandboxes: float = 0.0
    want_sandbox: float = 0.0

    def add(self, look: Look, limit: int) -> None:
        seconds = look.now_s - self.last.now_s
        self.running += seconds * look.load.running
        self.waiting += seconds * look.load.waiting
        self.kv_use += seconds * look.load.kv_use
        self.bound += seconds * (look.running >= limit and look.has_room)
        self.trainer_waits += seconds * look.trainer_waits
        self.sandboxes += seconds * look.sandboxes
        self.want_sandbox += seconds * look.want_sandbox
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
        """Return the number of queued requests per running request."""
        return self.waiting / max(self.running, 1e-9)

    @property
    def sandbox_line(self) -> float:
        """Return the number of episodes that wait for a sandbox per sandbox in use."""
        return self.want_sandbox / max(self.sandboxes, 1e-9)


@dataclass(slots=True)
class _Trial:
    """A raise of the limit that is not proven useful yet."""

    before: int
    tokens_per_s: float
    """The throughput before the raise."""
    best: float = 0.0
    stretches: int = 0


@dataclass
class Concurrency:
    """The limit and the state of its adaptation; see the module. The limit never exceeds what the
    staleness bound admits, and stays between `min_concurrent` and `max_concurrent`."""

    config: RolloutConfig
    limit: int = field(init=False)
    _stretch: _Stretch | None = None
    _trial: _Trial | None = None
    _doubles: bool = True
    """Whether a raise doubles the limit; False from the first time that the limit is lowered."""
    _too_many: int | None = None
    """A limit that was recently too high."""
    _forget_in: int = 0
    _pressed: int = 0
    """The number of consecutive stretches above an upper threshold."""

    def __post_init__(self) -> None:
        self.limit = self.config.admitted_groups

    def restart(self) -> None:
        """Discard the observations since the last verdict (engines did not answer, for example)."""
        self._stretch = None

    def observe(self, look: Look) -> LimitDecision | None:
        """Add a look; return a verdict if there are enough observations since the last one."""
        stretch = self._stretch
        if stretch is None or look.load.engines != stretch.last.load.engines:
            if stretch is not None:  # with other engines, the old limit may be fine
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
        return LimitDecision(before, self.limit, reason)

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
            (
                seen.sandbox_line,
                _LINE,
                f"{seen.sandbox_line:.2f} episodes in line for each sandbox in use",
            ),
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
        """Judge the last raise and return the reason to keep or undo it; "" if it was useful, or
        its use can no longer be measured."""
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
        """Lower the limit for a while; later raises take smaller steps."""
        self._trial, self._doubles, self._pressed = None, False, 0
        fewer = min(math.ceil(self.limit * factor - 1e-9), self.limit - 1)
        lower = max(self.config.part(ConcurrencyKeys).min_concurrent or 1, fewer)
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
    """Return whether the trainer still waits and the limit still keeps groups from starting."""
    return seen.trainer_waits >= _WAITING * seen.seconds and seen.bound >= _BINDING * seen.seconds
