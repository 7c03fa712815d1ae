"""The check whether a running process still answers, or has become silent.

The kernel's state of a process shows whether it runs or is frozen (`runtime/frozen.py`). If the
checking process was stopped itself, it received no signs of life meanwhile, although the others may
have sent some: therefore only a bounded time between two checks counts as silence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentgym_rl.runtime import HttpClient

ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 1.0
ASK_AGAIN_S = 0.25
"""The time, in seconds, between two requests, or checks for an answer, while there is no answer."""
SILENCE_LIMIT_S = 4.0
"""The longest silence, in seconds, of a healthy server whose process state is not known (on another
machine); with the intervals above, silence is detected within 4.5 s."""
LOOK_EVERY_S = 1.0
"""The time, in seconds, between two checks of the last request of a process that sends requests."""


class Silence:
    """The time since the last sign of life, where at most `most_s` seconds count between two
    checks."""

    def __init__(self, *, most_s: float) -> None:
        self.seconds = 0.0
        self._most_s = most_s
        self._looked_s = time.monotonic()

    @property
    def since_look_s(self) -> float:
        """Return the seconds since the last check."""
        return time.monotonic() - self._looked_s

    def look(self, *, alive: bool) -> float:
        """Record whether there was a sign of life since the last check; return the silence in
        seconds."""
        self.seconds = 0.0 if alive else self.seconds + min(self.since_look_s, self._most_s)
        self._looked_s = time.monotonic()
        return self.seconds

    async def listen(self, progress_s: Callable[[], float], *, for_s: float) -> float:
        """Wait `for_s` seconds, and return the silence at their end. `progress_s` returns the time
        of the latest sign of life."""
        before = progress_s()
        await asyncio.sleep(for_s)
        return self.look(alive=progress_s() > before)


class Health:
    """The health of a process with a URL that answers 200 while the process is healthy. See
    `health_of`."""

    def __init__(self, http: HttpClient, url: str) -> None:
        self.silence = Silence(most_s=2 * (ASK_EVERY_S + ASK_TIMEOUT_S))
        """The time without a healthy answer."""
        self._http, self._url = http, url

    async def ask(self) -> str:
        """Query the URL once; return the reason why the process is not healthy, or "" if it is."""
        try:
            status, _ = await self._http.call(self._url, "GET", "", timeout_s=ASK_TIMEOUT_S)
            problem = "" if status == 200 else f"{self._url} says {status}"
        except OSError as error:
            problem = f"{self._url}: {str(error) or type(error).__name__}"
        self.silence.look(alive=not problem)
        return problem


@asynccontextmanager
async def health_of(url: str) -> AsyncIterator[Health]:
    """Yield the health of a process, with a connection for queries of its URL."""
    async with HttpClient() as http:
        yield Health(http, url)


async def was_awake(for_s: float) -> bool:
    """Sleep for `for_s` seconds; return False if this process was stopped meanwhile, and so has not
    yet read what it received in that time."""
    slept = time.monotonic()
    await asyncio.sleep(for_s)
    return time.monotonic() - slept <= 2 * for_s + 1.0
