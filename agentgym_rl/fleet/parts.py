"""The parts that other code adds to a fleet: the turns of engines and trainer ranks on shared
devices, and the mirrors of the fleet's router in other processes.

A fleet by default has turns that never wait, and no mirrors. An installed package adds a kind of
turns by the group of entry points `agentgym_rl.turns` (`TurnsOf`), as for colocated engines. Code
that starts processes that send requests to the same engines adds a mirror to `Fleet.mirrors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar, Protocol

from agentgym_rl.config import ClusterConfig, OwnEngineConfig, TrainerConfig
from agentgym_rl.core import extension_names, load_extension, only_one
from agentgym_rl.core.messages import Used
from agentgym_rl.engines import Router

from .servers import Server

Interval = tuple[str, float, float]
"""The phase, start and end of an interval, in CLOCK_MONOTONIC seconds."""
Answering = Callable[[], Sequence[Server]]
GiveUp = Callable[[Server, str], Awaitable[None]]
GROUP = "turns"


class Turns:
    """The turns of engines and trainer ranks on their devices. In this class each has separate
    devices, so nothing waits; a subclass schedules shared devices."""

    shared: ClassVar[bool] = False
    """Whether ranks start, and get batches, only during their turn."""

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
        """Return the devices to the engines: all ranks have loaded their model."""

    async def to_ranks(self) -> bool:
        """Return whether a batch may be handed to the ranks. False: call again."""
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
        """End all waits, since the run ends."""


class MakeTurns(Protocol):
    """A function that makes the turns of one fleet; see `Turns`."""

    def __call__(self, router: Router, *, servers: Answering, give_up: GiveUp) -> Turns: ...


TurnsOf = Callable[[ClusterConfig, TrainerConfig, OwnEngineConfig], MakeTurns | None]
"""A member of the group `agentgym_rl.turns`: it returns the function that makes the turns of a run,
or None if it does not apply to this configuration."""


def turns_of(cluster: ClusterConfig, trainer: TrainerConfig, engine: OwnEngineConfig) -> MakeTurns:
    """Return the function that makes the turns of a run: that of the registered member that
    applies, or else `Turns`.

    Raises:
        ConfigError: several registered members apply.
    """
    found: dict[str, MakeTurns] = {}
    for name in extension_names(GROUP):
        of: TurnsOf = load_extension(GROUP, name)
        if (make := of(cluster, trainer, engine)) is not None:
            found[name] = make
    made = only_one(GROUP, found, would="both decide on the turns of this run's devices")
    return Turns if made is None else made


class Mirror(ABC):
    """The mirrors of a fleet's router in other processes, which send requests to its engines."""

    @abstractmethod
    async def all_know(self) -> None:
        """Wait until every mirror uses the present state of the router, or is cut off; only then
        does a publication begin at the engines."""

    @property
    @abstractmethod
    def counters(self) -> Mapping[str, int]:
        """Return the sums of the mirrors' router counters."""

    @property
    @abstractmethod
    def silent_s(self) -> Mapping[str, float]:
        """Return, by name, the seconds for which each server has sent no token although turns
        wait."""

    @property
    @abstractmethod
    def used(self) -> Sequence[Used]:
        """Return the resources that environments in the mirrors' processes used."""


class Mirrors:
    """The set of mirrors of one fleet."""

    def __init__(self) -> None:
        self._all = list[Mirror]()

    def add(self, mirror: Mirror) -> None:
        """Add a mirror, for which publications wait from now on."""
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
        """Return, by name, the shortest time without a token that any mirror reports for each
        server."""
        return shortest(*(mirror.silent_s for mirror in self._all))

    @property
    def used(self) -> list[Used]:
        """Return the resources that environments in other processes used."""
        return [used for mirror in self._all for used in mirror.used]


def shortest(*silent_s: Mapping[str, float]) -> dict[str, float]:
    """Return the minimum for each engine."""
    found: dict[str, float] = {}
    for each in silent_s:
        for name, seconds in each.items():
            found[name] = min(seconds, found.get(name, seconds))
    return found
