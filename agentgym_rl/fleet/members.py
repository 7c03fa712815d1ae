"""Engines that come and go during a run, as its user asks for them."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from agentgym_rl.config import Config, VllmEngineConfig
from agentgym_rl.core.errors import ArlError, ConfigError

from .elastic import ElasticFleet
from .loads import requests_of

log = logging.getLogger(__name__)

MOST_AT_ONCE = 64
"""Engines that one request may ask for."""


class Member(msgspec.Struct, frozen=True):
    """An engine of a run."""

    name: str
    url: str
    state: str
    """serving, waiting for weights, starting, leaving or given up."""
    version: int | None
    """That it serves; None while it is not in service."""
    requests: int | None
    """That it has, in line or running; None if it does not say."""
    restarts: int


class Joined(msgspec.Struct, frozen=True):
    """What came of an engine that was to join."""

    name: str
    url: str = ""
    state: str = ""
    error: str = ""
    """Why it did not; empty if it did."""


class Members:
    """What may be asked of the engines of a living run."""

    def __init__(self, config: Config, fleet: ElasticFleet) -> None:
        self._config = config
        self._fleet = fleet
        self._coming: set[int] = set()
        """Numbers of those that are joining."""

    async def all(self) -> list[Member]:
        """Every engine, in the order of their numbers."""
        fleet = self._fleet
        servers = sorted(fleet.members.values(), key=lambda server: _number(server.name))
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(requests_of(server.engine)) for server in servers]
        versions = {replica.name: replica.version for replica in fleet.router.replicas}
        return [
            Member(
                server.name,
                server.url,
                fleet.state(server.name),
                versions.get(server.name),
                task.result(),
                server.restarts,
            )
            for server, task in zip(servers, asked, strict=True)
        ]

    async def add(self, *, count: int = 1, url: str = "") -> list[Joined]:
        """Start `count` engines, or attach to the server at `url`; once they serve, or have failed.
        One that fails leaves the others and the run alone.

        Raises:
            ConfigError: it cannot be asked of this run.
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
            server = await self._fleet.meanwhile(self._fleet.enlist(index=number, url=url))
        except (ArlError, OSError, TimeoutError) as error:
            log.warning("%s did not join: %s", name, error)
            return Joined(name, url, error=str(error) or repr(error))
        state = self._fleet.state(name)
        log.info("%s has joined (%s): %s", name, server.url, state)
        return Joined(name, server.url, state)

    async def remove(self, engine: str) -> str:
        """Let an engine go, by its name or URL; its name, once it is gone.

        Raises:
            ConfigError: there is none of that name.
            InfraError, TimeoutError: it cannot go, or not now.
        """
        members = self._fleet.members
        found = next((s for s in members.values() if engine.rstrip("/") in (s.name, s.url)), None)
        if found is None:
            raise ConfigError(f"no engine {engine!r}: there are {', '.join(members)}")
        await self._fleet.meanwhile(self._fleet.dismiss(found.name))
        log.info("%s has left (%s)", found.name, found.url)
        return found.name

    # ------------------------------------------------------------------ checks
    def _check(self, count: int, url: str) -> None:
        engine = self._config.own_engine
        if self._config.cluster.colocated:
            raise ConfigError(
                "engines of this run share their devices with the trainer's ranks "
                "(cluster.colocated), which are as many as they were: no engine can join"
            )
        attached = isinstance(engine, VllmEngineConfig) and bool(engine.urls)
        if attached and not url:
            raise ConfigError(
                "this run attaches to servers that others start (engine.urls): give the URL of "
                "one more, not a number"
            )
        if url and not attached:
            raise ConfigError(
                f"this run starts its engines itself, so it cannot attach to {url}: give a number "
                "of engines to start; servers by URL can join runs that began with engine.urls"
            )
        if url and not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is no URL: expected http://HOST:PORT")
        if url and any(server.url == url.rstrip("/") for server in self._fleet.members.values()):
            raise ConfigError(f"{url} is an engine of this run already")
        if not 1 <= count <= MOST_AT_ONCE:
            raise ConfigError(f"{count} engines: between 1 and {MOST_AT_ONCE} can join at once")

    def _free(self, count: int) -> list[int]:
        """The smallest numbers that no engine has: GPUs and room go by them.

        Raises:
            ConfigError: there are no GPUs for so many.
        """
        config, engine = self._config, self._config.own_engine
        taken = {_number(name) for name in self._fleet.members} | self._coming
        if config.eval.scheduled:
            taken.add(engine.num_servers)  # of the engine that evaluates beside training
        highest = len(taken) + count
        free = [number for number in range(highest + 1) if number not in taken][:count]
        if isinstance(engine, VllmEngineConfig) and engine.gpus and not engine.urls:
            room = len(engine.gpus) // engine.tensor_parallel_size
            if max(free) >= room:
                raise ConfigError(
                    f"engine.gpus has {len(engine.gpus)} GPUs, room for {room} engines of "
                    f"tensor_parallel_size {engine.tensor_parallel_size}; {len(taken)} are taken"
                )
        return free


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
