"""The publication of versions as a loop does it, to engines of which no fleet takes care."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from agentgym_rl.controller import Engines, publish
from agentgym_rl.core import Published
from agentgym_rl.weights import Publisher


class _Unwatched:
    """Engines at known URLs (by name), of which nobody counts requests and restarts none."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls

    async def begin_publication(self, version: int) -> Mapping[str, str]:
        return self._urls

    async def begin_swap(self, version: int, lives: Iterable[str]) -> None: ...

    def end_swap(self, version: int, *, served: Iterable[str], failed: Iterable[str]) -> None: ...

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None: ...


async def published(
    publisher: Publisher,
    engines: Engines | Mapping[str, str],
    version: int,
    *,
    same_as: int | None = None,
) -> Published:
    """Make engines (a fleet, or URLs by name) serve the version that was prepared last, in a single
    try; `same_as` is that of `Publisher.stage`.

    Raises:
        WeightsError: no engine does, for the reasons that it names.
    """

    async def give(urls: Mapping[str, str], timeout_s: float) -> Published:
        return await asyncio.to_thread(partial(publisher.stage, urls, version, same_as=same_as))

    fleet = _Unwatched(engines) if isinstance(engines, Mapping) else engines
    swap = partial(asyncio.to_thread, publisher.swap)
    # The publisher has a time limit of its own; none is left for a second try.
    return await publish(fleet, version, give, swap, wait_s=0, timeout_s=0)


def publish_now(
    publisher: Publisher, engines: Mapping[str, str], version: int, *, same_as: int | None = None
) -> Published:
    """Return the result of `published`, for a caller that is not asynchronous."""
    return asyncio.run(published(publisher, engines, version, same_as=same_as))
