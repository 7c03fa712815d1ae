"""What a zygote imports for calls that wait: one target after the other, each in its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentgym_rl.errors import ConfigError, VerifierError

_BEGIN_S = 30.0
"""For a zygote to get to the next import: it may have to start first."""


class Imports:
    """`on_late(limit_s)`: an import has taken `timeout_s`, or the next one has not begun."""

    def __init__(self, timeout_s: float, *, on_late: Callable[[float], None]) -> None:
        self.known: set[str] = set()
        """What workers can call."""
        self.current = ""
        """What is being imported right now, as far as the zygote has said."""
        self._timeout_s = timeout_s
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[ConfigError | VerifierError | None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def ask(self, target: str) -> bool:
        """Someone waits for it; False: others do already."""
        if target in self._waiting:
            return False
        self._waiting[target] = self._loop.create_future()
        if self._timer is None:
            self._watch()
        return True

    async def done(self, target: str) -> None:
        """Return when what was asked for is known; raises what `ended` or `fail` was given."""
        error = await asyncio.shield(self._waiting[target])
        if error is not None:
            raise error

    def begun(self, target: str) -> None:
        self.current = target
        self._watch()

    def ended(self, target: str, error: ConfigError | VerifierError | None = None) -> None:
        self.current = ""
        if error is None:
            self.known.add(target)
        waiting = self._waiting.pop(target, None)
        if waiting is not None:
            waiting.set_result(error)
        self._watch()

    def again(self) -> list[str]:
        """What a new zygote is to import, now: what is known, then what is waited for."""
        self.current = ""
        self._watch()
        return [*sorted(self.known), *(t for t in self._waiting if t not in self.known)]

    def fail(self, error: VerifierError) -> None:
        """Everyone who waits; nobody will be served any more."""
        for target in list(self._waiting):
            self.ended(target, error)
        self.current = ""
        self._watch()

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.current or self._waiting:
            limit_s = self._timeout_s if self.current else _BEGIN_S
            self._timer = self._loop.call_later(limit_s, self._late, limit_s)

    def _late(self, limit_s: float) -> None:
        self._timer = None
        self._on_late(limit_s)
