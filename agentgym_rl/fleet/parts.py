"""The parts that others bring to a fleet: the turns on devices that it shares with the trainer's
ranks, and the mirrors of its router in other processes.

A fleet begins with turns that never wait, and without mirrors. An installed package adds a kind of
turns by the group of entry points `agentgym_rl.turns` (`TurnsOf`; colocation.py is one). Whoever
starts processes that send requests to the same engines adds a mirror (mirrors.py) to
`Fleet.mirrors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, Protocol

from agentgym_rl.config import ClusterConfig, OwnEngineConfig, TrainerConfig
from agentgym_rl.core.extensions import (
    extension_names,
    load_extension,
    not_installed,
    only_one,
)
from agentgym_rl.core.messages import Used
from agentgym_rl.engines.router.router import Router

from .servers import Server

Interval = tuple[str, float, float]
"""The phase, start and end of an interval, in CLOCK_MONOTONIC seconds."""
Answering = Callable[[], Sequence[Server]]
GiveUp = Callable[[Server, str], Awaitable[None]]
GROUP = "turns"


class Turns:
    """The turns of engines and trainer ranks on their devices. Here each has its own devices, so
    nobody waits; a subclass overrides what it does on shared ones."""

    shared: ClassVar[bool] = False
    """True if ranks start, and get batches, in their turn alone."""

    def __init__(self, router: Router, *, servers: Answering, give_up: GiveUp) -> None:
        """Set up the turns of a fleet. `servers` returns the servers that answer now; `give_up`
        ends a server that failed, which is then restarted."""
        self._router, self._servers, self._give_up = router, servers, give_up

    # ------------------------------------------------------------------ the ranks' turn
    async def starting_ranks(self) -> None:
        """Free the devices before ranks start and load their model.

        Raises:
            TimeoutError: engines took too long to free them.
        """

    async def ranks_started(self) -> None:
        """Give the devices back to the engines: all ranks have loaded their model."""

    async def to_ranks(self, *, wanted: Callable[[], bool]) -> bool:
        """Return whether a batch may be handed to the ranks. False: call again, or the batch is not
        `wanted` any more."""
        return True

    # ------------------------------------------------------------------ the engines' turn
    def servers_started(self) -> None:
        """Record that the initial servers have started."""

    def let_go(self) -> None:
        """Record that the ranks have released the devices."""

    async def begin_publication(self, servers: Iterable[Server]) -> None:
        """Prepare `servers` for new weights."""

    async def end_publication(self, served: Iterable[Server]) -> None:
        """Let all engines sample again, after a publication to `served`."""

    def give_up_publication(self) -> None:
        """End a publication whose ranks are lost."""

    @asynccontextmanager
    async def starting_server(self, server: Server) -> AsyncIterator[None]:
        """Hold the engines' turn while the caller restarts a lost server.

        Raises:
            TimeoutError: the ranks kept the devices for too long.
        """
        yield

    # ------------------------------------------------------------------ reports and end
    def slept(self) -> dict[str, list[Interval]]:
        """Return the sleep intervals of each engine, by name, since the last call."""
        return {}

    def close(self) -> None:
        """End all waiting, as the run ends."""


class MakeTurns(Protocol):
    """The maker of the turns of one fleet; see `Turns`."""

    def __call__(self, router: Router, *, servers: Answering, give_up: GiveUp) -> Turns: ...


TurnsOf = Callable[[ClusterConfig, TrainerConfig, OwnEngineConfig], MakeTurns | None]
"""A member of the group `agentgym_rl.turns`: returns the maker of the turns of a run; None if it
has nothing to do with a run of this configuration."""


def turns_of(cluster: ClusterConfig, trainer: TrainerConfig, engine: OwnEngineConfig) -> MakeTurns:
    """Return the maker of the turns of a run, from the registered one that makes some.

    Raises:
        ConfigError: several registered kinds of turns do, or none does and devices are shared.
    """
    found: dict[str, MakeTurns] = {}
    for name in extension_names(GROUP):
        of: TurnsOf = load_extension(GROUP, name)
        if (make := of(cluster, trainer, engine)) is not None:
            found[name] = make
    made = only_one(GROUP, found, would="both decide on the turns of this run's devices")
    if made is None and cluster.colocated:
        does = "shares devices between engines and ranks"
        raise not_installed(GROUP, "cluster.colocated", does)
    return Turns if made is None else made


class Mirror(ABC):
    """The mirrors of a fleet's router in other processes, which send requests to its engines."""

    @abstractmethod
    async def all_know(self) -> None:
        """Wait until every mirror uses the present state of the router, or is cut off: a
        publication begins at the engines after that."""

    @property
    @abstractmethod
    def counters(self) -> Mapping[str, int]:
        """Return the sums of the mirrors' router counters."""

    @property
    @abstractmethod
    def silent_s(self) -> Mapping[str, float]:
        """Return the seconds without a token for any waiting turn, by name of the server."""

    @property
    @abstractmethod
    def used(self) -> Sequence[Used]:
        """Return the resources that the environments beside the mirrors used."""


class Mirrors:
    """The mirrors of one fleet, together."""

    def __init__(self) -> None:
        self._all = list[Mirror]()

    def add(self, mirror: Mirror) -> None:
        """Add mirrors that publications wait for from now on."""
        self._all.append(mirror)

    async def all_know(self) -> None:
        """Wait until every mirror uses the router's present state, or is cut off."""
        for mirror in self._all:
            await mirror.all_know()

    @property
    def counters(self) -> Counter[str]:
        """Return the sums of all mirrors' router counters."""
        found = Counter[str]()
        for mirror in self._all:
            found.update(mirror.counters)
        return found

    @property
    def silent_s(self) -> dict[str, float]:
        """Return the shortest time without a token at any mirror, by name of the server."""
        return shortest(*(mirror.silent_s for mirror in self._all))

    @property
    def used(self) -> list[Used]:
        """Return the resources that environments in other processes used."""
        return [used for mirror in self._all for used in mirror.used]


def shortest(*silent_s: Mapping[str, float]) -> dict[str, float]:
    """Return the minimum by engine, over all its users."""
    found: dict[str, float] = {}
    for each in silent_s:
        for name, seconds in each.items():
            found[name] = min(seconds, found.get(name, seconds))
    return found
