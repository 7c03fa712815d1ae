"""The judgement of whether a process that runs still answers, or has fallen silent.

Whether it runs at all, or is frozen, is for the kernel to say (`runtime/frozen.py`). A process that
was stopped itself has heard nothing meanwhile, which says nothing about the others: so between two
looks only a bounded time counts as silence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentgym_rl.runtime.http_client import HttpClient

ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 1.0
ASK_AGAIN_S = 0.25
"""The time between two requests, or looks for an answer, while there is none."""
SILENCE_LIMIT_S = 4.0
"""The longest silence of a healthy server that no kernel can be asked about; with the intervals
above, silence is detected within 4.5 s."""
LOOK_EVERY_S = 1.0
"""The time between two looks at when a process that sends requests was last heard."""


class Silence:
    """The time since the last sign of life, of which at most `most_s` counts between two looks."""

    def __init__(self, *, most_s: float) -> None:
        self.seconds = 0.0
        self._most_s = most_s
        self._looked_s = time.monotonic()

    @property
    def since_look_s(self) -> float:
        """Return the seconds since the last look."""
        return time.monotonic() - self._looked_s

    def look(self, *, alive: bool) -> float:
        """Record whether there was a sign of life since the last look; return the silence now."""
        self.seconds = 0.0 if alive else self.seconds + min(self.since_look_s, self._most_s)
        self._looked_s = time.monotonic()
        return self.seconds

    async def listen(self, progress_s: Callable[[], float], *, for_s: float) -> float:
        """Listen for `for_s` seconds, and return the silence at their end. `progress_s` returns the
        time of the latest sign of life."""
        heard = progress_s()
        await asyncio.sleep(for_s)
        return self.look(alive=progress_s() > heard)


class Health:
    """The health of a process with a URL that answers 200 while it is healthy. See `asking`."""

    def __init__(self, http: HttpClient, url: str) -> None:
        self.silence = Silence(most_s=2 * (ASK_EVERY_S + ASK_TIMEOUT_S))
        """The time without a healthy answer."""
        self._http, self._url = http, url

    async def ask(self) -> str:
        """Ask once; return the reason why the process is not healthy, or "" if it is."""
        try:
            status, _ = await self._http.call(self._url, "GET", "", timeout_s=ASK_TIMEOUT_S)
            problem = "" if status == 200 else f"{self._url} says {status}"
        except OSError as error:
            problem = f"{self._url}: {str(error) or type(error).__name__}"
        self.silence.look(alive=not problem)
        return problem


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Health]:
    """Hold a connection for questions about the health of a process."""
    async with HttpClient() as http:
        yield Health(http, url)


async def was_awake(for_s: float) -> bool:
    """Sleep; return False if this process stood still meanwhile, and so has not yet read what it
    was sent in that time."""
    slept = time.monotonic()
    await asyncio.sleep(for_s)
    return time.monotonic() - slept <= 2 * for_s + 1.0
