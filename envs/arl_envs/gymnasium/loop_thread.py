"""A thread with an event loop, for callers without one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
_CLOSE_S = 10.0


class LoopThread:
    """A thread that runs coroutines for other threads. `close` ends it; it is a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._held: list[Future[None]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="sync-gym")
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work`; return a future of its result. Cancelling the future cancels the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Run `work` and return its result; it is cancelled when the caller stops waiting.

        Raises:
            TimeoutError: it took longer than `timeout_s`.
        """
        running = self.start(work)
        try:
            return running.result(timeout_s)
        finally:
            running.cancel()

    def hold(self, context: AbstractAsyncContextManager[Any], *, timeout_s: float) -> None:
        """Enter `context` now, and exit it in the same task when this thread is closed."""
        opened: Future[None] = Future()

        async def life() -> None:
            try:
                async with context:
                    opened.set_result(None)
                    await self._closing.wait()
            except BaseException as error:
                if opened.done():
                    raise
                opened.set_exception(error)

        held = self.start(life())
        try:
            opened.result(timeout_s)
        except BaseException:
            held.cancel()
            raise
        self._held.append(held)

    def close(self) -> None:
        """Exit the contexts entered by `hold`, and end the loop. Idempotent."""
        if self._loop.is_closed():
            return
        own = (
            threading.current_thread() is self._thread
        )  # true if the garbage collector calls this in that thread
        self._loop.call_soon_threadsafe(self._closing.set)
        for held in [] if own else self._held:
            try:
                held.result(_CLOSE_S)
            except Exception as error:  # no caller is left to handle it
                log.warning("ending what an environment held: %r", error)
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not own:
            self._thread.join(_CLOSE_S)
            if not self._thread.is_alive():
                self._loop.close()
