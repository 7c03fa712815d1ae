"""The delivery of a reply: events written in the client's dialect, streamed or in one body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from agentgym_rl.gateway.server.intake import TOKEN_SIZE, beside
from agentgym_rl.runtime.tasks import together

from .dialects import Writer
from .exchange import Exchange
from .parsers import Event
from .reply import OnEvents, Reply

_KEEP_ALIVE = b": still sampling\n"
"""A comment, which clients skip; without an empty line, which some would take for an event."""


async def deliver(
    exchange: Exchange,
    writer: Writer,
    produce: Callable[[OnEvents], Awaitable[int]],
    *,
    stream: bool,
    keep_alive_s: float,
) -> None:
    """Answer with the reply that `produce` reports in events, at least once. `produce` records the
    reply before it returns how many tokens were sampled."""
    exchange.error_event = writer.error_event
    begun = False

    async def send(reply: Reply, events: Sequence[Event]) -> None:
        nonlocal begun
        opening = b"" if begun else writer.begin()
        begun = True
        data = opening + writer.events(reply, events)
        if data:
            await exchange.events(data)

    async def keep(reply: Reply, events: Sequence[Event]) -> None:
        writer.take(reply, events)

    if not stream:
        size = TOKEN_SIZE * await produce(keep)
        return await exchange.whole(await beside(size, writer.whole))
    async with kept_alive(exchange, every_s=keep_alive_s):
        size = TOKEN_SIZE * await produce(send)
    await exchange.events(await beside(size, writer.end), last=True)


@asynccontextmanager
async def kept_alive(exchange: Exchange, *, every_s: float) -> AsyncIterator[None]:
    """Keep a stream from being silent for long while the body runs: proxies would cut it."""
    async with together() as tasks:
        keeper = tasks.create_task(_keep_alive(exchange, every_s), name="keep alive")
        yield
        keeper.cancel()


async def _keep_alive(exchange: Exchange, every_s: float) -> None:
    while True:
        num_sent = exchange.num_sent
        await asyncio.sleep(every_s)
        if exchange.num_sent == num_sent:
            await exchange.events(_KEEP_ALIVE)
