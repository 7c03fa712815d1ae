"""The servers of an event loop: episodes are spread over them, and wait for free sessions in line.

    begin ─► a place at the least used server ─► connect, reset ─► an open session
                ▲                                   │ the server has no session left
                └── wait, in the order of arrival ◄─┘

When a server refuses a session because it is full, OpenEnv's answer contains its maximum number of
sessions; from then on no more than these are tried. Other programs may use some of the sessions, so
a full server is tried again after a while, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import insort
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from agentgym_rl import ConfigError, InfraError
from agentgym_rl.gym import OffTheClock
from agentgym_rl.runtime import Repeated

from .session import NoSession, Session

RETRY_S, MAX_RETRY_S = 0.1, 5.0
"""The first and the longest pause before a server without a free session is tried again."""
DOWN_S = 5.0
"""The pause before a server that cannot be reached is tried again, if there are others."""

log = logging.getLogger(__name__)
_warnings = Repeated(log)


@dataclass(slots=True, eq=False)
class _Server:
    url: str
    taken: int = 0
    """The number of sessions that are open or being opened from here."""
    most: int | None = None
    """The maximum number of sessions, as the server reports it, if it does."""
    active: int | None = None
    """The number of sessions in use, of all programs, when the server was last full."""
    again_s: float = 0.0
    """The time of the event loop from which the server may be tried."""
    retry_s: float = RETRY_S
    offer: object = None
    """The form of the actions, when a session was last opened; None: not known yet."""
    moved_s: float = -math.inf
    """The time of the last session that began."""


@dataclass(slots=True, order=True)
class _Waiter:
    order: int
    servers: Sequence[_Server] = field(compare=False)
    found: asyncio.Future[_Server] = field(compare=False)


class Line:
    """The servers and the waiting episodes of one event loop."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._waiting: list[_Waiter] = []
        self._orders = count()
        self._timer: asyncio.TimerHandle | None = None

    async def begin(
        self,
        urls: Sequence[str],
        data: Mapping[str, Any],
        *,
        timeout_s: float,
        prepare: Callable[[str], Awaitable[object]],
    ) -> tuple[Session, Mapping[str, Any]]:
        """Return a new session at one of `urls`, and the server's answer to its reset with `data`.

        `prepare` is called with the URL of a server before a session of it is opened, and returns
        what has to be equal at all of them. The wait for a free session does not count for the
        limit of the step; it ends `timeout_s` after the last session of these servers has begun. A
        server that cannot be reached is left out.

        Raises:
            BadAction: the server refuses the reset's data.
            EnvError: the environment's own code raised.
            InfraError: no session became free, or no server can be reached, or it failed.
            ConfigError: the servers are not equal.
        """
        servers = [self._servers.setdefault(url, _Server(url)) for url in urls]
        order, since_s = next(self._orders), _now()
        down: dict[str, InfraError] = {}
        while True:
            server = await self._place(servers, order, since_s, timeout_s)
            try:
                self._compare(server, await prepare(server.url), servers)
                session = await Session.open(server.url)
            except InfraError as error:
                down[server.url] = error
                server.most = None  # it may be started again with more
                if len(down) == len(urls):
                    self._leave(server)
                    raise _unreachable(down) from error
                _warnings.warn("%s; the other servers go on", error, why=server.url)
                server.again_s = _now() + DOWN_S
                self._leave(server)
                continue
            except BaseException:
                self._leave(server)
                raise
            try:
                found = await session.call("reset", data)
            except BaseException as error:
                if isinstance(error, NoSession):
                    self._note_full(server, error)
                try:
                    await session.close()
                finally:
                    self._leave(server)
                if not isinstance(error, NoSession):
                    raise
            else:
                server.retry_s, server.moved_s = RETRY_S, _now()
                session.on_close = partial(self._end, server)
                return session, found

    def _compare(self, server: _Server, offer: object, servers: Sequence[_Server]) -> None:
        server.offer = offer
        for other in servers:
            if other.offer is not None and other.offer != offer:
                raise ConfigError(
                    f"the actions of {server.url} are not those of {other.url}: the servers of one "
                    "url have to serve the same environment"
                )

    async def _place(
        self, servers: Sequence[_Server], order: int, since_s: float, timeout_s: float
    ) -> _Server:
        found: asyncio.Future[_Server] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(order, servers, found)
        insort(self._waiting, waiter)
        self._pump()
        try:
            with OffTheClock():
                while not found.done():
                    end_s = max(since_s, *(server.moved_s for server in servers)) + timeout_s
                    if _now() >= end_s:
                        raise self._too_long(servers, timeout_s)
                    await asyncio.wait([found], timeout=end_s - _now())
        except BaseException:
            if found.done():
                self._leave(found.result())
            else:
                self._waiting.remove(waiter)
            raise
        return found.result()

    def _pump(self) -> None:
        """Assign the free places to the waiting episodes, in the order of their arrival."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now, left, later = _now(), list[_Waiter](), set[float]()
        for waiter in self._waiting:
            free = [s for s in waiter.servers if s.most is None or s.taken < s.most]
            if ready := [server for server in free if server.again_s <= now]:
                server = min(ready, key=lambda server: server.taken / (server.most or 1))
                server.taken += 1
                waiter.found.set_result(server)
            else:
                left.append(waiter)
                later.update(server.again_s for server in free)
        self._waiting = left
        if later:
            self._timer = asyncio.get_running_loop().call_at(min(later), self._pump)

    def _leave(self, server: _Server) -> None:
        server.taken -= 1
        self._pump()

    def _end(self, server: _Server) -> None:
        """Record that a session has ended: a server that was full has room now."""
        server.again_s, server.retry_s = 0.0, RETRY_S
        self._leave(server)

    def _note_full(self, server: _Server, error: NoSession) -> None:
        if error.most is not None and error.most != server.most:
            log.info(
                "the OpenEnv server %s holds %d sessions at once; more episodes wait",
                *(server.url, error.most),
            )
        server.most, server.active = error.most, error.active
        if server.again_s <= _now():  # else the pause was set by another of these attempts
            server.again_s = _now() + server.retry_s
            server.retry_s = min(2 * server.retry_s, MAX_RETRY_S)

    def _too_long(self, servers: Sequence[_Server], timeout_s: float) -> InfraError:
        states = "; ".join(
            f"{s.url} holds {_shown(s.most)} at once, {s.taken} of them are this process's, "
            f"{_shown(s.active)} were in use when it last refused one"
            for s in servers
        )
        return InfraError(
            f"no OpenEnv session became free for {timeout_s:g} s (session_timeout_s), and "
            f"{len(self._waiting)} episodes wait: {states}. Start the server with more sessions "
            "(max_concurrent_envs, in many servers the variable MAX_CONCURRENT_ENVS); start more "
            "servers and name all (--env openenv:http://one:8000,http://two:8000); play fewer "
            "episodes at once; or wait longer "
            f"(--env.options.session_timeout_s={4 * timeout_s:g})"
        )


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, Line] = WeakKeyDictionary()


def line_here() -> Line:
    """Return the line of the running event loop."""
    return _lines.setdefault(asyncio.get_running_loop(), Line())


def _now() -> float:
    return asyncio.get_running_loop().time()


def _shown(number: int | None) -> str:
    return "an unknown number" if number is None else str(number)


def _unreachable(down: Mapping[str, InfraError]) -> InfraError:
    if len(down) == 1:
        return next(iter(down.values()))
    return InfraError(
        f"none of {len(down)} servers can be played: {'; '.join(map(str, down.values()))}"
    )
