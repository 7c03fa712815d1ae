"""Waiting with an owner and a deadline: nobody waits in silence, nobody waits for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

REPORT_EVERY_S = 30.0


class Changes:
    """Wakes those who wait for a condition whenever something it may depend on has changed.

    One event loop only. `notify` is synchronous, so counters change and wake in one breath.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Let every waiter look at its condition again."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait_for(
        self, condition: Callable[[], bool], *, who: str, what: str, timeout_s: float
    ) -> None:
        """Return once `condition()` holds; says every 30 s who waits for what.

        Raises:
            TimeoutError: `timeout_s` passed; names who waited for what.
        """
        clock = asyncio.get_running_loop().time
        start = clock()
        deadline = start + timeout_s
        while not condition():
            now = clock()
            if now >= deadline:
                raise TimeoutError(f"{who} waited {now - start:.0f} s for {what}")
            try:
                async with asyncio.timeout_at(min(now + REPORT_EVERY_S, deadline)):
                    await self._event.wait()
            except TimeoutError:
                log.info("%s has waited %.0f s for %s", who, clock() - start, what)
