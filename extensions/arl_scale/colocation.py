"""The turns of engines and trainer ranks that share devices (`cluster.colocated`).

    a batch is assembled ─► all engines sleep ─► ranks get it, load their state, train
    ranks let go, publish ─► engines wake their weights ─► update ─► engines wake the rest, sample

Requests in flight wait at the sleeping engines; their deadlines stop
(`runtime/pausable_clock.py`). No engine is started during the ranks' turn, and the ranks' turn does
not begin while an engine is being started. Loading a rank's model is also a turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from agentgym_rl.config import ClusterConfig, OwnEngineConfig, TrainerConfig
from agentgym_rl.core import EngineError, SleepLevel
from agentgym_rl.core.engine import Memory
from agentgym_rl.engines import Router
from agentgym_rl.fleet import GiveUp, MakeTurns, Server, Turns
from agentgym_rl.fleet.parts import Answering, Interval
from agentgym_rl.runtime import Changes

from .keys import ShareKeys

log = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 45.0
"""The time limit for an engine to fall asleep or to wake."""
_POLL_S = 5.0
"""The longest wait of `to_ranks` before the caller has to call it again."""


class _Turn(StrEnum):
    ENGINES = "engines"
    STARTING = "starting"
    """The turn of ranks that load their model."""
    TRAINING = "training"


@dataclass(frozen=True)
class SharedDevices:
    """The devices that engines share with the trainer's ranks."""

    sleep_level: SleepLevel
    timeout_s: float
    """The longest time that ranks or servers wait for each other."""

    @classmethod
    def of(
        cls, cluster: ClusterConfig, trainer: TrainerConfig, engine: OwnEngineConfig
    ) -> SharedDevices | None:
        """Return the shared devices of a run, or None if it has none."""
        keys = cluster.part(ShareKeys)
        if not keys.colocated:
            return None
        starts_s = trainer.start_timeout_s + engine.start_timeout_s
        return cls(keys.sleep_level, trainer.batch_timeout_s + starts_s)


def turns_of(
    cluster: ClusterConfig, trainer: TrainerConfig, engine: OwnEngineConfig
) -> MakeTurns | None:
    """Return the maker of the turns of a run with shared devices; None: it has none."""
    shared = SharedDevices.of(cluster, trainer, engine)
    return shared and partial(Colocation, shared)


class Colocation(Turns):
    """The turns of one run on shared devices. One event loop only. A server that fails to sleep or
    wake is given up."""

    shared = True

    def __init__(
        self, shared: SharedDevices, router: Router, *, servers: Answering, give_up: GiveUp
    ) -> None:
        super().__init__(router, servers=servers, give_up=give_up)
        self._level: SleepLevel = shared.sleep_level
        self._timeout_s = shared.timeout_s
        self._turn = _Turn.ENGINES
        self._starts = 1
        """The number of servers being started; the initial servers together count as one."""
        self._publishing = False
        self._lock = asyncio.Lock()
        """The lock that is held while engines fall asleep or wake."""
        self._changes = Changes()
        self._bare: set[str] = set()
        """The lives of servers that have discarded their weights."""
        self._since: dict[str, float] = {}
        """The time at which each sleeping server fell asleep, by its name."""
        self._slept: dict[str, list[Interval]] = {}

    # ------------------------------------------------------------------ the ranks' turn
    def servers_started(self) -> None:
        """Record that the initial servers have started."""
        self._starts -= 1
        self._changes.notify()

    async def starting_ranks(self) -> None:
        """Put the engines to sleep before ranks start and load their model onto shared devices.

        Raises:
            TimeoutError: engines took too long to start or to fall asleep.
        """
        deadline = time.monotonic() + self._timeout_s
        while not await self._taken(_Turn.STARTING):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"trainer ranks waited {self._timeout_s:.0f} s for engines to leave the "
                    "devices that they share (cluster.colocated)"
                )

    async def ranks_started(self) -> None:
        """Wake the engines: all ranks have loaded their model and released the devices."""
        if self._turn is _Turn.STARTING:
            await self._wake_all()

    async def to_ranks(self) -> bool:
        """Return whether a batch may be handed to the ranks, because all engines sleep now. False:
        call again."""
        return await self._taken(_Turn.TRAINING)

    async def _taken(self, turn: _Turn) -> bool:
        """Take the turn for the ranks; return whether they have it now."""
        if not await self._waited(
            lambda: not (self._starts or self._publishing), "engines that are being started"
        ):
            return False
        async with self._lock:
            if self._starts or self._publishing:
                return False
            if self._turn is _Turn.ENGINES:
                # A server start from here on waits until the ranks release the devices.
                self._turn = turn
                try:
                    await self._sleep_all(self._level if turn is _Turn.TRAINING else 1)
                except BaseException:
                    self._turn = _Turn.ENGINES
                    raise
            self._turn = turn
        self._changes.notify()
        return True

    async def _waited(self, condition: Callable[[], bool], what: str) -> bool:
        try:
            await self._changes.wait_for(
                condition, who="the trainer", what=what, timeout_s=_POLL_S, on="engine"
            )
        except TimeoutError:
            return False
        return True

    async def _sleep_all(self, level: SleepLevel) -> None:
        self._router.set_asleep(True)
        await self._each(self._servers(), lambda server: self._put_to_sleep(server, level))

    async def _put_to_sleep(self, server: Server, level: SleepLevel) -> None:
        if level == 2:
            self._bare.add(server.life)
        await server.engine.sleep(level=level)
        self._since.setdefault(server.name, time.monotonic())

    # ------------------------------------------------------------------ the engines' turn
    async def begin_publication(self, servers: Iterable[Server]) -> None:
        """Wake the weights of `servers`: ranks have released the devices and publish to them.
        Servers that do not wake are given up."""
        async with self._lock:
            self._publishing = True
            asleep = [server for server in servers if server.engine.asleep]
            await self._each(asleep, lambda server: self._woken(server, "weights"))

    def let_go(self) -> None:
        """Allow server starts again: ranks have released the devices."""
        self._turn = _Turn.ENGINES
        self._changes.notify()

    async def end_publication(self, served: Iterable[Server]) -> None:
        """End a publication that gave `served` new weights, and let all engines sample again."""
        self._bare -= {server.life for server in served}
        self._publishing = False
        await self._wake_all()

    def give_up_publication(self) -> None:
        """End a publication whose ranks are lost; engines sleep until new ranks publish."""
        self._publishing = False
        self._changes.notify()

    async def _wake_all(self) -> None:
        """Wake all engines that have weights; the others sleep until they get weights."""
        async with self._lock:
            self._turn = _Turn.ENGINES
            asleep = [server for server in self._servers() if server.engine.asleep]
            able = [server for server in asleep if server.life not in self._bare]
            await self._each(able, self._woken)
            if len(able) == len(asleep):
                self._router.set_asleep(False)
        self._changes.notify()

    async def _woken(self, server: Server, *tags: Memory) -> None:
        await server.engine.wake_up(*tags)
        if not server.engine.asleep:
            self._rose(server.name)

    def _rose(self, name: str) -> None:
        if (since := self._since.pop(name, None)) is not None:
            self._slept.setdefault(name, []).append(("asleep", since, time.monotonic()))

    # ------------------------------------------------------------------ servers
    @asynccontextmanager
    async def starting_server(self, server: Server) -> AsyncIterator[None]:
        """Hold the engines' turn while the caller restarts a lost server; wait for that turn first.

        Raises:
            TimeoutError: the ranks kept the devices for too long.
        """
        self._rose(server.name)
        await self._changes.wait_for(
            lambda: self._turn is _Turn.ENGINES,
            who=server.name,
            what="the trainer to let go of the devices that they share",
            timeout_s=self._timeout_s,
            on="trainer",
        )
        self._starts += 1
        try:
            yield
        finally:
            self._starts -= 1
            self._changes.notify()

    async def _each(
        self, servers: Sequence[Server], act: Callable[[Server], Awaitable[None]]
    ) -> None:
        """Run `act` on all servers concurrently; give up servers that fail or are too slow."""

        async def one(server: Server) -> None:
            try:
                async with asyncio.timeout(_CALL_TIMEOUT_S):
                    await act(server)
            except (EngineError, TimeoutError) as error:
                why = f"it did not fall asleep or wake on request: {error!r}"
                log.warning("%s: %s", server.name, why)
                await self._give_up(server, why)

        async with asyncio.TaskGroup() as tasks:
            for server in servers:
                tasks.create_task(one(server), name=f"turn of {server.name}")

    def slept(self) -> dict[str, list[Interval]]:
        """Return the sleep intervals of each engine, by name, since the last call."""
        for name in list(self._since):
            self._rose(name)
            self._since[name] = time.monotonic()
        found, self._slept = self._slept, {}
        return found

    def close(self) -> None:
        """End the waiting for sleeping engines, as the run ends."""
        self._router.set_asleep(False)
