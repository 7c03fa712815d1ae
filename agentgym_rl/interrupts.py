"""Ctrl-C and SIGTERM: the first ends a run cleanly, and no number of them leaves a mess."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


def run_interruptible(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on uvloop until it ends, or SIGINT or SIGTERM cancels it.

    A second signal only says that closing everything takes a moment; a third one leaves at once
    with code 130 (children die with their parent). Both signals count even where they were
    inherited as ignored, as in `arl train &` of a script.

    Raises:
        KeyboardInterrupt: it was interrupted, and everything is closed.
    """
    import uvloop

    with _Interrupts() as interrupts:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(interrupts.guard(main))
        except asyncio.CancelledError:
            if interrupts.count:
                raise KeyboardInterrupt from None
            raise


class _Interrupts:
    def __init__(self) -> None:
        self.count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> _Interrupts:
        signals = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._handle) for number in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    async def guard(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `main`; an interrupt, even one from before, cancels it."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.count:
            raise asyncio.CancelledError
        return await main()

    def _handle(self, number: int, frame: object) -> None:
        self.count += 1
        if self.count > 2:
            show_cursor = b"\x1b[?25h\n" if os.isatty(2) else b""
            os.write(2, show_cursor + b"arl: interrupted\n")
            os._exit(130)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._act)  # logging is not safe in a handler

    def _act(self) -> None:
        if self.count > 1:
            log.warning("everything is being closed; once more leaves at once")
        elif self._task is not None:
            self._task.cancel()
