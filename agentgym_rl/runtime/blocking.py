"""The watch over code that blocks the event loop: it interrupts what blocks for longer than it may,
and reports the time that is lost by shorter blocks.

Environments and agents run on the event loop of `arl`, where a deadline cannot end a call that
never waits, such as `time.sleep`. A thread looks at the main thread's stack whenever the loop does
not run. If a call there has a limit and exceeds it, a signal raises `Held` inside the call.
`guard.py`, another process, is for code that even keeps Python's signal handlers from running.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Protocol, cast

from agentgym_rl.core.user_errors import relative

from .guard import holder_of, place

log = logging.getLogger(__name__)

LOOK_S = 0.1
SEEN_S = 0.25
"""The time, in seconds, without a beat of the loop after which the stack is looked at."""
TOLD_S = 1.0
"""The lost time, in seconds, that is reported at the end; while a run lasts, five times as much."""
_MOST_TOLD = 3
_SIGNAL: int | None = getattr(signal, "SIGRTMIN", 0) + 7 if hasattr(signal, "SIGRTMIN") else None


class Held(BaseException):
    """The interruption of a call that blocked the event loop for longer than it may. It is no
    `Exception`, so that code which catches all of them does not go on with a wrong result."""


class Limited(Protocol):
    """The owner of a call with a limit, found as `self` in a frame on the stack."""

    @property
    def held_limit_s(self) -> float:
        """Return the longest time, in seconds, for which the call may block the loop."""
        ...

    @property
    def way_out(self) -> str:
        """Return the advice for code that blocks."""
        ...

    def interrupted(self, where: str, held_s: float) -> Held:
        """Record that the call is interrupted, and return what is raised in it."""
        ...


_limited: set[CodeType] = set()


def limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of a `Limited` object: what it calls is interrupted at the object's limit."""
    _limited.add(function.__code__)
    return function


class BlockWatch:
    """The watch over the event loop of this thread, the main one, while the context is open."""

    def __init__(self) -> None:
        self._beats = 0
        self._ended = threading.Event()
        self._due: Limited | None = None
        """The owner of the call to interrupt."""
        self._held_s = 0.0
        self._owner: Limited | None = None
        """The owner of the call that blocks, and the time at which it was first seen."""
        self._owned_s = 0.0
        self._lost_s: dict[str, float] = {}
        """The lost time by the code that blocked, and its advice."""
        self._told: set[str] = set()

    def __enter__(self) -> BlockWatch:
        self._main = threading.get_ident()
        if _SIGNAL is not None:
            self._before = signal.signal(_SIGNAL, self._interrupt)
        threading.Thread(target=self._watch, name="block watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if _SIGNAL is not None:
            signal.signal(_SIGNAL, self._before)
        lost = sorted(self._lost_s.items(), key=lambda item: -item[1])
        for who, lost_s in lost[:_MOST_TOLD]:
            if lost_s >= TOLD_S and who not in self._told:
                self._tell(who, lost_s)

    def beat(self) -> None:
        """Show that the loop runs."""
        self._beats += 1

    def _watch(self) -> None:
        beats, quiet_s, last_s = 0, 0.0, 0.0
        while not self._ended.wait(LOOK_S):
            now_s = time.monotonic()
            if self._beats != beats or not beats:  # it runs, or has not begun
                beats, quiet_s, self._owner = self._beats, now_s, None
                last_s = now_s
            elif now_s - quiet_s >= SEEN_S:
                self._look(now_s, since_s=last_s)
                last_s = now_s

    def _look(self, now_s: float, *, since_s: float) -> None:
        """Find what blocks the loop: count the time since the last look, and interrupt it if it has
        been there for too long."""
        frame = sys._current_frames().get(self._main)
        owner = _owner(frame)
        if owner is not self._owner:
            self._owner, self._owned_s = owner, now_s
        if who := _holder(frame):
            self._lose(who, now_s - since_s)
        held_s = now_s - self._owned_s
        if owner and held_s > owner.held_limit_s and _SIGNAL is not None:
            self._due, self._held_s = owner, held_s
            signal.pthread_kill(self._main, _SIGNAL)

    def _lose(self, who: str, lost_s: float) -> None:
        self._lost_s[who] = self._lost_s.get(who, 0.0) + lost_s
        if self._lost_s[who] >= 5 * TOLD_S and who not in self._told:
            self._tell(who, self._lost_s[who])

    def _tell(self, who: str, lost_s: float) -> None:
        self._told.add(who)
        where, _, advice = who.partition("\n")
        log.warning(
            "%s has held the event loop for %.1f s in all: no other episode went on meanwhile. %s.",
            *(where, lost_s, advice),
        )

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise `Held` in the main thread, if the call to interrupt still runs."""
        due, self._due = self._due, None
        if due is not None and _owner(frame) is due:
            raise due.interrupted(place(_places(frame)), self._held_s)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of a stack, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _owner(frame: FrameType | None) -> Limited | None:
    """Return the owner of the innermost call with a limit."""
    inside = next((each for each in _frames(frame) if each.f_code in _limited), None)
    return cast("Limited | None", inside.f_locals.get("self")) if inside else None


def _places(frame: FrameType | None) -> list[tuple[str, int, str]]:
    """Return the file, line and function of each frame of a stack, the innermost first."""
    codes = ((each.f_code, each.f_lineno or 0) for each in _frames(frame))
    return [(relative(code.co_filename), line, code.co_name) for code, line in codes]


def _holder(frame: FrameType | None) -> str:
    """Return the foreign code that runs, and below it the advice; "" if there is none."""
    found = holder_of(_places(frame))
    if found is None:
        return ""
    owner = _owner(frame)
    return f"{found[0].rstrip(',')}\n{owner.way_out if owner else found[1]}"
