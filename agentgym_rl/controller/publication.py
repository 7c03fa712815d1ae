"""The publication of a policy version by a loop: the fleet chooses the engines, the trainer sends
them the weights, and they swap, some at a time. The fleet knows of each swap before it begins, so
that only requests that may meet it use no cached KV.

If no engine loaded the version, the publication begins again, with the engines that then exist.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from agentgym_rl.core import Published, WeightsError

log = logging.getLogger(__name__)

_PAUSE_S = 0.02
"""The pause between two checks for an engine that serves."""
_BETWEEN_TRIES_S = 0.2


class Engines(Protocol):
    """The engines that versions are published to: a `Fleet`."""

    async def begin_publication(self, version: int) -> Mapping[str, str]: ...

    async def begin_swap(self, version: int, lives: Iterable[str]) -> None: ...

    def end_swap(self, version: int, *, served: Iterable[str], failed: Iterable[str]) -> None: ...

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None: ...


class Publications(Engines, Protocol):
    """The engines of a run, some of which may get their weights only from a publication."""

    @property
    def wanted(self) -> bool:
        """Return whether a server waits for a publication to bring it to the current version."""
        ...

    @property
    def silent_s(self) -> Mapping[str, float]:
        """Return the seconds without a token for any waiting turn, by name of the server."""
        ...


Give = Callable[[Mapping[str, str], float], Awaitable[Published]]
"""A function that sends a version to engines (URLs by name) within some seconds; those in `waves`
of the result have only staged it."""
Swap = Callable[[Sequence[str]], Awaitable[Published]]
"""A function that makes engines of a wave serve the version that they have staged."""


async def publish(
    engines: Engines, version: int, give: Give, swap: Swap, *, wait_s: float, timeout_s: float
) -> Published:
    """Make `engines` serve a version, which `give` sends to those that exist.

    All tries together take at most `timeout_s`, and the waits for an engine at most `wait_s`.

    Raises:
        WeightsError: no engine loaded it, or there was none.
    """
    while True:
        start_s = time.monotonic()
        urls = await _begun(engines, version, wait_s)
        begun = time.monotonic()
        wait_s -= begun - start_s
        done = await give(urls, timeout_s)
        for wave in done.waves:
            await engines.begin_swap(version, wave)
            part = await swap(wave)
            engines.end_swap(version, served=part.served, failed=part.failed)
            done = done.after(part)
        # Engines that failed are ended, even if the ranks are lost meanwhile.
        await asyncio.shield(
            engines.end_publication(version, served=done.served, failed=done.failed)
        )
        if done.served:
            return done
        await asyncio.sleep(_BETWEEN_TRIES_S)
        timeout_s -= time.monotonic() - begun
        why = f"no engine took policy version {version}: {'; '.join(done.failed.values())}"
        if timeout_s <= 0:
            raise WeightsError(why)
        log.warning("%s; trying again for %.0f s", why, timeout_s)


async def _begun(engines: Engines, version: int, wait_s: float) -> Mapping[str, str]:
    """Begin a publication once there is an engine; return the URLs of all by name."""
    deadline = time.monotonic() + wait_s
    while not (urls := await engines.begin_publication(version)):
        if time.monotonic() > deadline:
            raise WeightsError(
                f"no engine was there to take policy version {version} within {wait_s:.0f} s: see "
                "logs/engine-*.log for the cause"
            )
        await asyncio.sleep(_PAUSE_S)
    return urls
