"""Whose turn it is, where engines and trainer ranks share devices (`cluster.colocated`).

    a batch is assembled ─► all engines sleep ─► ranks have it, load their state, train
    ranks let go, publish ─► engines wake their weights ─► update ─► engines wake the rest, sample

Requests in flight wait meanwhile, at the engines; their deadlines stand still
(`runtime/pausable_clock.py`). No engine is started while it is the ranks' turn, and it does not
become theirs while one is being started. Loading a rank's model is a turn, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum

from agentgym_rl.config import Config
from agentgym_rl.core.engine import Memory, SleepLevel
from agentgym_rl.core.errors import EngineError
from agentgym_rl.engines.router.router import Router
from agentgym_rl.runtime.waiting import Changes

from .servers import Server

log = logging.getLogger(__name__)

Interval = tuple[str, float, float]
"""Phase, start and end, in CLOCK_MONOTONIC seconds."""

_CALL_TIMEOUT_S = 45.0
"""Longest time for an engine to fall asleep or to wake."""
_POLL_S = 5.0
"""Longest time that `to_ranks` waits before it says that it has to be asked again."""


class _Turn(StrEnum):
    ENGINES = "engines"
    STARTING = "starting"
    """Of ranks that load their model."""
    TRAINING = "training"


class Colocation:
    """The turns of one run. One event loop only. Where nothing is shared, nothing happens.

    `servers` are those that answer now; `give_up` ends one that did not do as it was told, which is
    then started again.
    """

    def __init__(
        self,
        config: Config,
        router: Router,
        *,
        servers: Callable[[], Sequence[Server]],
        give_up: Callable[[Server, str], Awaitable[None]],
    ) -> None:
        self.is_on = config.cluster.colocated
        self._level: SleepLevel = config.cluster.sleep_level
        self._timeout_s = (
            config.trainer.batch_timeout_s
            + config.trainer.start_timeout_s
            + config.own_engine.start_timeout_s
        )
        """Longest time that ranks or servers wait for each other."""
        self._router = router
        self._servers = servers
        self._give_up = give_up
        self._turn = _Turn.ENGINES
        self._starts = 1
        """Servers that are being started; those of the beginning count as one."""
        self._publishing = False
        self._lock = asyncio.Lock()
        """Held while engines fall asleep, or wake."""
        self._changes = Changes()
        self._bare: set[str] = set()
        """Lives of servers that have forgotten their weights."""
        self._since: dict[str, float] = {}
        """By the name of each sleeper, when it fell asleep."""
        self._slept: dict[str, list[Interval]] = {}

    # ------------------------------------------------------------------ the ranks' turn
    def servers_started(self) -> None:
        """Those of the beginning are there."""
        self._starts -= 1
        self._changes.notify()

    async def starting_ranks(self) -> None:
        """Before ranks are started: they load their model onto devices that engines have left.

        Raises:
            TimeoutError: engines were being started, or did not fall asleep, for too long.
        """
        if not self.is_on:
            return
        deadline = time.monotonic() + self._timeout_s
        while not await self._taken(_Turn.STARTING, lambda: True):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"trainer ranks waited {self._timeout_s:.0f} s for engines to leave the "
                    "devices that they share (cluster.colocated)"
                )

    async def ranks_started(self) -> None:
        """All ranks have loaded their model, and have let go of the devices."""
        if self.is_on and self._turn is _Turn.STARTING:
            await self._wake_all()

    async def to_ranks(self, *, lead: bool, wanted: Callable[[], bool]) -> bool:
        """Whether a batch may be handed to a rank: all engines sleep. Rank 0, the `lead`, which
        publishes nothing while it asks, puts them to sleep; the others wait for that. False: ask
        again, or it is not `wanted` any more."""
        if not self.is_on:
            return True
        if lead:
            return await self._taken(_Turn.TRAINING, wanted)
        asleep = await self._waited(lambda: self._turn is _Turn.TRAINING, "engines to fall asleep")
        return asleep and wanted()

    async def _taken(self, turn: _Turn, wanted: Callable[[], bool]) -> bool:
        """Whether it is the ranks' turn by now."""
        if not await self._waited(
            lambda: not (self._starts or self._publishing), "engines that are being started"
        ):
            return False
        async with self._lock:
            if self._starts or self._publishing or not wanted():
                return False
            if self._turn is _Turn.ENGINES:
                # A server that is started from here on waits for the ranks to let go.
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
        """Ranks have let go, and publish to these: sleepers have their weights again. Servers that
        do not wake are given up."""
        if not self.is_on:
            return
        async with self._lock:
            self._publishing = True
            asleep = [server for server in servers if server.engine.asleep]
            await self._each(asleep, lambda server: self._woken(server, "weights"))

    def let_go(self) -> None:
        """Ranks have let go of the devices: servers may be started again."""
        if self.is_on:
            self._turn = _Turn.ENGINES
            self._changes.notify()

    async def end_publication(self, served: Iterable[Server]) -> None:
        """It is over: these have new weights. All go on sampling."""
        if not self.is_on:
            return
        self._bare -= {server.life for server in served}
        self._publishing = False
        await self._wake_all()

    def give_up_publication(self) -> None:
        """The ranks that published are gone; others will, and until then sleepers sleep."""
        self._publishing = False
        self._changes.notify()

    async def _wake_all(self) -> None:
        """Let all sample again that have weights to do it with; the others sleep until they do."""
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
        """A server that was lost is started again inside, once it is the engines' turn.

        Raises:
            TimeoutError: the ranks kept the devices for too long.
        """
        if not self.is_on:
            yield
            return
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
        """At once; those that fail, or are too slow, are given up."""

        async def one(server: Server) -> None:
            try:
                async with asyncio.timeout(_CALL_TIMEOUT_S):
                    await act(server)
            except (EngineError, TimeoutError) as error:
                why = f"it did not fall asleep or wake as it was told: {error!r}"
                log.warning("%s: %s", server.name, why)
                await self._give_up(server, why)

        async with asyncio.TaskGroup() as tasks:
            for server in servers:
                tasks.create_task(one(server), name=f"turn of {server.name}")

    def slept(self) -> dict[str, list[Interval]]:
        """By the name of each engine, when it slept since this was asked last."""
        for name in list(self._since):
            self._rose(name)
            self._since[name] = time.monotonic()
        found, self._slept = self._slept, {}
        return found

    def close(self) -> None:
        """The run ends: nobody waits for a sleeper any more."""
        if self.is_on:
            self._router.set_asleep(False)
