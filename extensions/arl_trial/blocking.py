"""The watch over code that blocks the event loop: it interrupts a step that blocks for longer than
it may, and reports the time that is lost by shorter blocks.

Environments and agents run on the event loop of `arl`, where a deadline cannot end a call that
never waits, such as `time.sleep`. A thread looks at the stack of the loop's thread whenever the
loop does not run. If a step there exceeds its time limit, a signal raises `Held` inside the step.
`runtime/guard.py`, another process, is for code that even keeps Python's signal handlers from
running.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from agentgym_rl.core import relative
from agentgym_rl.gym.step_clock import current_owner
from agentgym_rl.gym.wrappers import Held, Timeout
from agentgym_rl.runtime import holder_of, place, queued_s

log = logging.getLogger(__name__)

BEAT_S = 0.05
"""The interval, in seconds, at which the loop shows that it runs."""
LOOK_S = 0.1
SEEN_S = 0.25
"""The time, in seconds, without a beat after which the stack is looked at."""
TOLD_S = 1.0
"""The lost time, in seconds, that is reported at the end; while a run lasts, five times as much."""
_MOST_TOLD = 3
WAIT_S = 0.5
"""The time, in seconds, for which an agent may wait for this event loop itself."""
_SIGNAL: int | None = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None
_LIMITED = {Timeout.reset.__code__, Timeout.step.__code__, Timeout.rest.__code__}


class BlockWatch:
    """The watch over the running event loop while the context is open. Only the main thread can be
    interrupted; in another one the time that is lost is reported. The time for which the thread has
    no CPU, on a busy machine, does not count.

    Args:
        queued_s: A function that returns the time, in seconds, for which a thread of a process had
            no CPU.
    """

    def __init__(self, queued_s: Callable[[int, int], float] = queued_s) -> None:
        self._queued_s = queued_s
        self._beats = 0
        self._ended = threading.Event()
        self._due: Timeout | None = None
        """The limit whose step is to be interrupted."""
        self._inherited: Timeout | None = None
        """The limit of the step whose task has started the one that blocks, such as a tool call;
        it is in the task's context, which only the signal handler can read."""
        self._held_s = 0.0
        self._seen: tuple[Timeout | None, str] | None = None
        """The limit of the step that blocks, or the agent, and the time it was first seen."""
        self._since_s = 0.0
        self._lost_s: dict[str, float] = {}
        """The lost time by the code that blocked, and below it the advice."""
        self._told = set[str]()
        self.interrupted = ""
        """The last interruption."""
        self._endpoint, self._agent_s = "", math.inf

    def __enter__(self) -> BlockWatch:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._task = threading.get_native_id()
        self._interrupts = (
            _SIGNAL is not None and threading.current_thread() is threading.main_thread()
        )
        if self._interrupts and _SIGNAL is not None:
            self._before = signal.signal(_SIGNAL, self._interrupt)
        self._beat()
        threading.Thread(target=self._watch, name="block watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._interrupts and _SIGNAL is not None:
            signal.signal(_SIGNAL, self._before)
        lost = sorted(self._lost_s.items(), key=lambda item: -item[1])
        for who, lost_s in lost[:_MOST_TOLD]:
            if lost_s >= TOLD_S and who not in self._told:
                self._tell(who, lost_s)

    def ran_s(self) -> float:
        """Return a time, in seconds, that stops while the loop's thread has no CPU."""
        return time.monotonic() - self._queued_s(os.getpid(), self._task)

    @contextmanager
    def trying(self, endpoint: str, agent_s: float) -> Generator[None]:
        """Interrupt an agent, too, in this context: one that blocks for more than `agent_s`, or
        that waits for a reply from `endpoint`, which this event loop would have to send."""
        self._endpoint, self._agent_s = endpoint, agent_s
        try:
            yield
        finally:
            self._endpoint, self._agent_s = "", math.inf

    def _beat(self) -> None:
        self._beats += 1
        if not self._ended.is_set():
            self._loop.call_later(BEAT_S, self._beat)

    def _watch(self) -> None:
        beats, quiet_s, last_s = 0, 0.0, 0.0
        while not self._ended.wait(LOOK_S):
            now_s = self.ran_s()
            if self._beats != beats:
                beats, quiet_s, last_s, self._seen = self._beats, now_s, now_s, None
                self._inherited = None
            elif now_s - quiet_s >= SEEN_S:
                self._look(now_s, now_s - last_s)
                last_s = now_s

    def _look(self, now_s: float, lost_s: float) -> None:
        """Find what blocks the loop: add the lost time, and interrupt a step after its limit."""
        frame = sys._current_frames().get(self._thread)
        who = _holder(frame)
        limit = _limit_of(frame) or self._inherited
        if (limit, who[:9]) != self._seen:
            self._seen, self._since_s = (limit, who[:9]), now_s
        if who:
            self._lost_s[who] = self._lost_s.get(who, 0.0) + lost_s
            if self._lost_s[who] >= 5 * TOLD_S and who not in self._told:
                self._tell(who, self._lost_s[who])
        held_s = now_s - self._since_s
        limit_s = limit.step_timeout_s if limit else self._limit_of_agent(frame, who)
        asks = limit is None and bool(who) and not held_s
        if (asks or held_s > limit_s) and self._interrupts and _SIGNAL is not None:
            self._due, self._held_s = limit, held_s
            signal.pthread_kill(self._thread, _SIGNAL)

    def _limit_of_agent(self, frame: FrameType | None, who: str) -> float:
        """Return the longest time for which an agent may block."""
        if not who.startswith("the agent") or _imports(frame):
            return math.inf
        return WAIT_S if _waits_for(frame, self._endpoint) else self._agent_s

    def _tell(self, who: str, lost_s: float) -> None:
        self._told.add(who)
        where, _, advice = who.partition("\n")
        log.warning(
            "%s has held the event loop for %.1f s in all: no other episode went on meanwhile. %s.",
            *(where, lost_s, advice),
        )

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise `Held` in the main thread, if the code to interrupt still runs."""
        due, owner = self._due, current_owner()
        self._inherited = owner if isinstance(owner, Timeout) else None
        limit = _limit_of(frame) or self._inherited
        self._due, where = None, place(_places(frame))
        if due is not limit:
            return
        if limit is not None:
            held = limit.interrupt(where, self._held_s)
        elif self._held_s <= self._limit_of_agent(frame, _holder(frame)):
            return
        elif _waits_for(frame, self._endpoint):
            held = Held(f"{where} waits for a reply in a client that is not async. {_ASYNC_CLIENT}")
        else:
            who, _, advice = _holder(frame).partition("\n")
            held = Held(f"{who} has blocked for {self._held_s:.1f} s. {advice}")
        self.interrupted = str(held)
        self._told.add(_holder(frame))  # the error says it
        raise held


_ASYNC_CLIENT = (
    "It blocks the event loop, on which the endpoint runs, so that nobody answers: use the "
    "`client` that run() gets, or openai.AsyncOpenAI(base_url=str(client.base_url), "
    "api_key=client.api_key), and `await` its calls"
)


def _imports(frame: FrameType | None) -> bool:
    """Return whether a stack is inside an import, which may take long the first time."""
    return any(each.f_code.co_filename.startswith("<frozen importlib") for each in _frames(frame))


def _waits_for(frame: FrameType | None, endpoint: str) -> bool:
    """Return whether a stack is inside a client of an SDK that asks `endpoint`; those of OpenAI and
    Anthropic have the same base."""
    for each in _frames(frame) if endpoint else ():
        if each.f_code.co_filename.endswith("_base_client.py"):
            client: Any = each.f_locals.get("self")
            return str(getattr(client, "base_url", "")).startswith(endpoint)
    return False


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of a stack, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _limit_of(frame: FrameType | None) -> Timeout | None:
    """Return the limit of the innermost step on a stack."""
    inside = next((each for each in _frames(frame) if each.f_code in _LIMITED), None)
    found: Any = inside.f_locals.get("self") if inside else None
    return found if isinstance(found, Timeout) else None


def _places(frame: FrameType | None) -> list[tuple[str, int, str]]:
    """Return the file, line and function of each frame of a stack, the innermost first."""
    codes = ((each.f_code, each.f_lineno or 0) for each in _frames(frame))
    return [(relative(code.co_filename), line, code.co_name) for code, line in codes]


def _holder(frame: FrameType | None) -> str:
    """Return the foreign code that runs, and below it the advice; "" if there is none."""
    found = holder_of(_places(frame))
    if found is None:
        return ""
    limit = _limit_of(frame)
    return f"{found[0].rstrip(',')}\n{limit.way_out if limit else found[1]}"
