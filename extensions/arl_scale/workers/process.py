"""The rollout worker, `arl rollout`: a process that plays groups leased by the controller.

    controller ─► lease ─► members, each by an agent at this process's own gateway ─► controller
               ─► engines in service, publications ─► the gateway's router

A worker keeps no state: its finished episodes are in the run's log, and those that it plays when it
dies are played again by other workers.

Its router follows the controller's: the same replicas at the same versions, and the same updates.
The swap of an engine begins here before it begins at the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentgym_rl.config import Config, RolloutConfig
from agentgym_rl.core import (
    EngineError,
    EngineInfo,
    FleetView,
    InfraError,
    Lease,
    ReplicaView,
    WorkerReport,
)
from agentgym_rl.core.messages import Used
from agentgym_rl.engines import EngineClient, EngineSetup
from agentgym_rl.fleet import wait_serving
from agentgym_rl.fleet.servers import agreed
from agentgym_rl.rollout import Player, play_member, serving_policy, tried
from agentgym_rl.rollout.throughput import used_by

from .client import ControllerError, CutOff, LeaseLost, LeasesClient, RunEnding

log = logging.getLogger(__name__)

_LAST_REPORT_S = 2.0


class FollowedFleet:
    """The engines of a run. Use inside `running()`; `watch` must run while `router` is used."""

    def __init__(self, setup: EngineSetup, client: LeasesClient) -> None:
        self._setup = setup
        self._client = client
        self._number = 0
        self._engines: dict[str, EngineClient] = {}
        self._failed: set[str] = set()
        self.used: Callable[[], Used] = Used
        """The source of the reported use of sandboxes and verifiers."""
        self.router = setup.router(lambda name, error: self._failed.add(name))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FollowedFleet]:
        """Hold the connections to the engines, and close them at the end."""
        try:
            yield self
        finally:
            self.router.set_asleep(False)
            await self.router.close()
            for engine in self._engines.values():
                await engine.close()

    async def ready(self) -> EngineInfo:
        """Wait until some engine serves; return the common info of the serving engines.

        Raises:
            InfraError: no engine served within `engine.start_timeout_s`.
            ConfigError: the engines serve different models.
        """
        limit_s = self._setup.engine.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    await self._look()
                    with contextlib.suppress(EngineError):  # the next look shows its state
                        if infos := await self._infos():
                            return agreed(infos)
        except TimeoutError as error:
            raise InfraError(
                f"no engine served for {limit_s:g} s (engine.start_timeout_s)"
            ) from error

    async def _infos(self) -> dict[str, EngineInfo]:
        return {name: await self._engines[name].info() for name in self.router.serving}

    async def watch(self) -> None:
        """Follow the controller, until cancelled.

        Raises:
            CutOff, RunEnding: the controller has ended the contact.
            ControllerError: the controller is unreachable.
        """
        while True:
            await self._look()

    async def wait_serving(self) -> None:
        """Wait until some engine serves.

        Raises:
            InfraError: no engine served within `engine.start_timeout_s`.
        """
        await wait_serving(self.router, timeout_s=self._setup.engine.start_timeout_s)

    async def _look(self) -> None:
        """Send the news to the controller, and apply its view of the fleet if it sends one."""
        if (found := await self._client.follow(self._report())) is not None:
            await self._apply(found.view)
            self._number = found.number

    def _report(self) -> WorkerReport:
        failed, self._failed = tuple(sorted(self._failed)), set[str]()
        router = self.router
        return WorkerReport(self._number, router.silent_s, router.counters, failed, self.used())

    async def send_last_report(self) -> None:
        """Send the last news at the end of a run, if the controller still accepts it."""
        with contextlib.suppress(RunEnding, CutOff, ControllerError, TimeoutError):
            async with asyncio.timeout(_LAST_REPORT_S):
                await self._client.follow(self._report())

    # ------------------------------------------------------------------ following
    async def _apply(self, view: FleetView) -> None:
        """Bring the router to the state of the view, without ever assuming more than the view
        contains. A view may contain the end of one publication and the beginning of the next."""
        router = self.router
        wanted = {replica.name: replica for replica in view.replicas}
        for name in router.serving:
            if name not in wanted or wanted[name].url != self._engines[name].url:
                router.remove(name)
        router.set_asleep(view.asleep)
        for name, replica in wanted.items():
            if name in router.serving:
                self._follow(replica)
            else:
                await self._serve(replica)

    def _follow(self, it: ReplicaView) -> None:
        self.router.follow(it.name, it.version, incarnation=it.incarnation, calm=it.calm)

    async def _serve(self, replica: ReplicaView) -> None:
        engine = self._engines.get(replica.name)
        if engine is not None and engine.kind != replica.kind:
            await engine.close()
            engine = None
        if engine is None:
            engine = self._setup.client(replica.url, kind=replica.kind)
            self._engines[replica.name] = engine
        elif engine.url != replica.url:
            await engine.move(replica.url)
        engine.has_spans = replica.has_spans
        self.router.add(replica.name, engine, version=replica.version, has_spans=replica.has_spans)
        self._follow(replica)


async def work(config: Config, *, controller_url: str, token: str, index: int = 0) -> None:
    """Play, as worker number `index`, until the controller reports that there is nothing more
    to play.

    Raises:
        CutOff: the controller has given this worker up.
        ControllerError: the controller is gone, or refuses a request.
        InfraError: no engine served for too long.
    """
    log.info("worker %d", index)
    # The configured port is that of the gateway of `arl train`.
    config = config.model_copy(update={"gateway": config.gateway.model_copy(update={"port": 0})})
    try:
        # the run has tried the code; here a step that blocks is interrupted
        async with tried(config, None), LeasesClient.connected(controller_url, token) as client:
            setup = EngineSetup.of(config)
            fleet = FollowedFleet(setup, client)
            async with fleet.running(), serving_policy(config, fleet) as player:
                fleet.used = lambda: used_by(player.services)
                try:
                    await _Worker(config.rollout, client, player, seed=config.seed).run()
                finally:
                    await fleet.send_last_report()
    except* RunEnding:
        log.info("nothing more is to be played")


class _Worker:
    def __init__(
        self, config: RolloutConfig, client: LeasesClient, player: Player, *, seed: int
    ) -> None:
        self._config = config
        self._client = client
        self._player = player
        self._seed = seed

    async def run(self) -> None:
        """Play all leased groups, as many at once as the controller leases.

        Raises:
            RunEnding: the controller has nothing more to play.
        """
        await self._client.ready()
        async with asyncio.TaskGroup() as groups:
            while True:
                lease = await self._client.lease()
                if lease is not None:
                    groups.create_task(self._play(lease), name=f"group {lease.group_id}")

    async def _play(self, lease: Lease) -> None:
        try:
            async with asyncio.TaskGroup() as members:
                for name in lease.members:
                    members.create_task(self._play_member(lease, name), name=f"episode {name}")
        except* LeaseLost as lost:
            log.warning("group %s is given up: %s", lease.group_id, lost.exceptions[0])

    async def _play_member(self, lease: Lease, name: str) -> None:
        member = await play_member(
            self._config,
            self._player,
            lease.task,
            seed=self._seed,
            group_id=lease.group_id,
            episode_id=name,
        )
        await self._client.finished(member)
