"""Engines that join and leave during a run, at the user's request."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from agentgym_rl.core import ArlError, ConfigError, EngineError, is_url
from agentgym_rl.engines import EngineClient
from agentgym_rl.fleet import Fleet

from .elastic import Elastic

log = logging.getLogger(__name__)

MOST_AT_ONCE = 64
"""The maximum number of engines in one request."""
_TIMEOUT_S = 2.0


class Member(msgspec.Struct, frozen=True):
    """An engine of a run."""

    name: str
    url: str
    state: str
    """The state: serving, waiting for weights, starting, leaving or given up."""
    version: int | None
    """The version that the engine serves; None while it is not in service."""
    requests: int | None
    """The number of queued and running requests; None if the engine does not report it."""
    restarts: int


class Joined(msgspec.Struct, frozen=True):
    """The result of an engine's attempt to join."""

    name: str
    url: str = ""
    state: str = ""
    error: str = ""
    """The reason why the engine did not join; empty if it did."""


class Members:
    """The user's requests about the engines of a live run.

    `reserved`: the number of engines, numbered after those that the run began with, that evaluate
    on schedule or play seats.
    """

    def __init__(self, fleet: Fleet, *, reserved: int = 0) -> None:
        self._fleet, self._elastic = fleet, Elastic(fleet)
        self._reserved = reserved
        self._coming: set[int] = set()
        """The numbers of engines that are joining."""

    async def all(self) -> list[Member]:
        """Return every engine, in the order of their numbers."""
        fleet = self._fleet
        servers = sorted(fleet.servers.values(), key=lambda server: _number(server.name))
        async with asyncio.TaskGroup() as tasks:
            counts = [tasks.create_task(_requests_of(server.engine)) for server in servers]
        versions = {replica.name: replica.version for replica in fleet.router.replicas}
        return [
            Member(
                server.name,
                server.url,
                self._elastic.state(server.name),
                versions.get(server.name),
                task.result(),
                server.restarts,
            )
            for server, task in zip(servers, counts, strict=True)
        ]

    async def add(self, *, count: int = 1, url: str = "") -> list[Joined]:
        """Start `count` engines, or attach to the server at `url`; return once each serves or has
        failed. A failed engine does not affect the others or the run.

        Raises:
            ConfigError: the request is not possible for this run.
            InfraError: the run is starting or ending.
        """
        self._check(count, url)
        numbers = self._free(count)
        self._coming.update(numbers)
        try:
            async with asyncio.TaskGroup() as tasks:
                joining = [tasks.create_task(self._join(number, url)) for number in numbers]
        finally:
            self._coming.difference_update(numbers)
        return [task.result() for task in joining]

    async def _join(self, number: int, url: str) -> Joined:
        name = f"engine-{number}"
        try:
            server = await self._elastic.meanwhile(self._elastic.enlist(index=number, url=url))
        except (ArlError, OSError, TimeoutError) as error:
            log.warning("%s did not join: %s", name, error)
            return Joined(name, url, error=str(error) or repr(error))
        state = self._elastic.state(name)
        log.info("%s has joined (%s): %s", name, server.url, state)
        return Joined(name, server.url, state)

    async def remove(self, engine: str) -> str:
        """Remove an engine, by its name or URL, and return its name once it has left.

        Raises:
            ConfigError: there is no engine of that name.
            InfraError, TimeoutError: the engine cannot leave, or not now.
        """
        members = self._fleet.servers
        found = next((s for s in members.values() if engine.rstrip("/") in (s.name, s.url)), None)
        if found is None:
            raise ConfigError(f"no engine {engine!r}: there are {', '.join(members)}")
        await self._elastic.meanwhile(self._elastic.dismiss(found.name))
        log.info("%s has left (%s)", found.name, found.url)
        return found.name

    # ------------------------------------------------------------------ checks
    def _check(self, count: int, url: str) -> None:
        engine = self._fleet.setup.engine
        if self._fleet.turns.shared:
            raise ConfigError(
                "engines of this run share their devices with the trainer's ranks "
                "(cluster.colocated), whose number is fixed: no engine can join"
            )
        if engine.attached and not url:
            raise ConfigError(
                "this run uses running servers (engine.urls) and starts none: give the URL of "
                "one more, not a number"
            )
        if url and not engine.attached:
            raise ConfigError(
                f"this run starts its engines itself, so it cannot attach to {url}: give a number "
                "of engines to start; servers by URL can join runs that began with engine.urls"
            )
        if url and not is_url(url):
            raise ConfigError(f"{url!r} is not a URL: expected http://HOST:PORT")
        if url and any(server.url == url.rstrip("/") for server in self._fleet.servers.values()):
            raise ConfigError(f"{url} is an engine of this run already")
        if not 1 <= count <= MOST_AT_ONCE:
            raise ConfigError(f"{count} engines: between 1 and {MOST_AT_ONCE} can join at once")

    def _free(self, count: int) -> list[int]:
        """Return the smallest free engine numbers: the number of an engine selects its GPUs.

        Raises:
            ConfigError: there are not enough GPUs.
        """
        engine = self._fleet.setup.engine
        taken = {_number(name) for name in self._fleet.servers} | self._coming
        taken |= {engine.num_servers + number for number in range(self._reserved)}
        highest = len(taken) + count
        free = [number for number in range(highest + 1) if number not in taken][:count]
        gpus = engine.chosen_gpus
        if gpus and not engine.attached:
            room = len(gpus) // engine.gpus_per_server
            if max(free) >= room:
                raise ConfigError(
                    f"engine.gpus has {len(gpus)} GPUs, room for {room} engines of "
                    f"{engine.gpus_per_server} each; {len(taken)} are taken"
                )
        return free


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


async def _requests_of(engine: EngineClient) -> int | None:
    """Return the engine's number of queued and running requests; None if it does not answer."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            measures = await engine.measures()
    except (EngineError, TimeoutError):
        return None
    return round(measures["running"] + measures["waiting"])
