"""The relay from a port of a sandbox to one address of the host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""The largest number of connections at once; more wait to be accepted."""
CONNECT_S = 20.0
"""The longest time the host's address may take to accept a connection."""
CHUNK_BYTES = 1 << 16


class Stream(Protocol):
    """The end of a connection, to which pieces of data are passed on, and from which they come."""

    async def receive(self) -> bytes:
        """Return the next piece; b"" at the end.

        Raises:
            OSError: the connection has failed.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Pass a piece on, and wait until there is room for another.

        Raises:
            OSError: the connection has failed.
        """

    def end(self) -> None:
        """Send nothing more."""

    def close(self) -> None:
        """Close the connection."""


class SocketStream:
    """The end of a connection that is a socket of this process."""

    def __init__(self, conn: socket.socket) -> None:
        conn.setblocking(False)
        self._conn = conn
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> bytes:
        return await self._loop.sock_recv(self._conn, CHUNK_BYTES)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._conn, data)

    def end(self) -> None:
        with contextlib.suppress(OSError):  # the other direction has ended already
            self._conn.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._conn.close()


Accept = Callable[[], Awaitable[Stream]]
"""A function that waits for the next connection of a program."""


def address_of(port: int, to: str) -> tuple[str, int]:
    """Return the host and port of `to`, a "host:port".

    Raises:
        ValueError: it has another form, or a port is not from 1 to 65535.
    """
    host, colon, number = to.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not colon or not number.isdecimal():
        raise ValueError(f"to {to!r}: expected host:port, such as 127.0.0.1:8000")
    for each in (port, int(number)):
        if not 0 < each < 1 << 16:
            raise ValueError(f"port {each}: expected 1 to 65535")
    return host, int(number)


@contextlib.asynccontextmanager
async def relayed(accept: Accept, address: tuple[str, int]) -> AsyncIterator[None]:
    """Relay every accepted connection to the address, and end all of them at the end."""
    relaying = asyncio.create_task(_relay(accept, address), name=f"relay to {address}")
    try:
        yield
    finally:
        relaying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await relaying


async def _relay(accept: Accept, address: tuple[str, int]) -> None:
    room = asyncio.Semaphore(MAX_CONNECTIONS)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await room.acquire()
            tasks.create_task(_connected(await accept(), address, room), name="relay")


async def _connected(inside: Stream, address: tuple[str, int], room: asyncio.Semaphore) -> None:
    """Relay one connection; its failures end it, and nothing else."""
    outside = None
    try:
        outside = await _connect(address)
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(inside, outside), name="to the host")
            both.create_task(_pump(outside, inside), name="from the host")
    except* (OSError, TimeoutError) as error:
        log.debug("a connection from a sandbox to %s ended: %s", address, error)
    finally:
        inside.close()
        if outside is not None:
            outside.close()
        room.release()


async def _connect(address: tuple[str, int]) -> SocketStream:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_S):
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(made, place)
        except BaseException:
            made.close()
            raise
    return SocketStream(made)


async def _pump(source: Stream, target: Stream) -> None:
    """Pass on each piece as it comes, and the end."""
    while data := await source.receive():
        await target.send(data)
    target.end()
