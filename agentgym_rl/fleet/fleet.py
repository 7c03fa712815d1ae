"""The engines of a run: started or attached, watched, restarted, and kept at one version.

A server serves only the current policy version: a server that died, became silent or missed an
update leaves the router at once, and returns after it has loaded that version. No server joins
during a publication.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from agentgym_rl.cluster import LocalProcesses, Processes, Supervisor
from agentgym_rl.cluster.health import was_awake
from agentgym_rl.core import (
    AdapterRefused,
    ConfigError,
    EngineError,
    EngineInfo,
    ProcessDied,
    WeightsError,
)
from agentgym_rl.engines import EngineSetup
from agentgym_rl.runtime import together
from agentgym_rl.runtime.waiting import Wait, watched
from agentgym_rl.storage import version_name
from agentgym_rl.storage.run_files import Run

from .parts import MakeTurns, Turns, shortest
from .publications import Publications
from .servers import (
    AttachedServer,
    OwnServer,
    Server,
    agreed,
    check_seeds,
    make_server,
    make_servers,
    wait_serving,
)

log = logging.getLogger(__name__)


class Fleet(Supervisor[Server], Publications):
    """The engines of a run. Use inside `running()`; `watch` must run while `router` is used.

    `weights_dir`: the folder of the run's policy versions, for servers that return; None if the
    policy never changes (evaluation on separate servers). `version`: the current version. Started
    servers serve version 0; another version must be published to them, unless it is in
    `weights_file`: see `take`. The servers are numbered from `first_index`. `turns` makes the
    object that schedules engines and trainer ranks on shared devices.

    A custom training loop starts them with `started`:

    >>> import asyncio
    >>> from agentgym_rl import Fleet, runs
    >>> async def main():
    ...     with runs.temporary() as run:
    ...         async with Fleet.started(run) as fleet:
    ...             await fleet.ready()
    ...             reply = await fleet.router.sample([1, 2, 3], max_tokens=4)
    ...             return len(reply.token_ids), reply.versions
    >>> asyncio.run(main())
    (4, [0, 0, 0, 0])
    """

    def __init__(
        self,
        setup: EngineSetup,
        config_file: Path,
        processes: Processes,
        *,
        model_dir: Path,
        weights_dir: Path | None = None,
        version: int = 0,
        incarnation: int = 0,
        weights_file: Path | None = None,
        first_index: int = 0,
        turns: MakeTurns = Turns,
    ) -> None:
        limit = setup.engine.max_restarts
        super().__init__("engine", max_restarts=limit, key="engine.max_restarts")
        self.restarts = 0
        """The number of successful server restarts so far, after a death or a failed update."""
        self.setup = setup
        self._weights_dir = weights_dir
        self._weights_file = weights_file
        servers = make_servers(
            setup,
            config_file,
            processes,
            model_dir=model_dir,
            incarnation=incarnation,
            first_index=first_index,
        )
        self.make_server = partial(make_server, setup, config_file, processes, model_dir=model_dir)
        """The function that makes servers that join later (elastic.py)."""
        router = setup.router(lambda name, error: self.suspect(name))
        Publications.__init__(
            self, router, servers, turns=turns, version=version, incarnation=incarnation
        )
        self.left.update(self.servers)
        self.agreed: EngineInfo | None = None
        """The common properties of the servers, once they are ready."""

    @classmethod
    @asynccontextmanager
    async def started(cls, run: Run) -> AsyncGenerator[Fleet]:
        """Start the engines of a run on this machine, as child processes, for a context. They are
        ready after `ready`, for which a `Rollout` waits.

        Raises:
            ConfigError: runs cannot start the configured engine.
        """
        config = run.config
        stop_timeout_s = config.cluster.stop_timeout_s
        async with LocalProcesses(run.folder / "logs", stop_timeout_s=stop_timeout_s) as processes:
            fleet = cls(
                EngineSetup.of(config),
                run.config_file,
                processes,
                model_dir=run.model_dir,
                weights_dir=run.weights,
            )
            async with fleet.running():
                yield fleet

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        """Start the servers (they are not ready yet); close the connections at the end."""
        try:
            for server in self.servers.values():
                await server.start()
            with watched(self._waits):
                yield self
        finally:
            self.turns.close()
            await self.router.close()
            for server in list(self.servers.values()):
                await server.engine.close()

    async def ready(self) -> EngineInfo:
        """Wait until every server answers, put them in service, and return their common info.

        Raises:
            ProcessDied: a server died or did not answer in time.
            ConfigError: a server does not match the configuration.
        """
        infos: dict[str, EngineInfo] = {}

        async def join(server: Server) -> None:
            await server.ready()
            infos[server.name] = await self.join(server)

        async with together() as tasks:
            for server in self.servers.values():
                tasks.create_task(join(server), name=f"start {server.name}")
        check_seeds(self.servers.values())
        self.agreed = agreed(infos)
        self.turns.servers_started()
        return self.agreed

    async def watch(self) -> None:
        """Restart every server that dies or becomes silent, until cancelled.

        Raises:
            ProcessDied: the last server was retired.
        """
        async with self._supervising(self.servers.values()) as self.tasks:
            self.tasks.create_task(self._watch_progress(), name="watch progress")

    def suspect(self, name: str) -> None:
        if name in self.servers:  # unless it has left
            self.servers[name].suspect()

    async def _watch_progress(self) -> None:
        """Restart servers that hang, although they may still answer their health route."""
        limit_s = self.setup.engine.stall_timeout_s
        while True:
            found = self.silent_s if await was_awake(min(1.0, limit_s / 4)) else {}
            for name, silent_s in found.items():
                server = self.servers.get(name)
                if silent_s > limit_s and not self._publishing and server is not None:
                    await self._distrust(
                        server,
                        f"it was asked, and has sent no token for {silent_s:.0f} s "
                        "(engine.stall_timeout_s)",
                    )

    @property
    def silent_s(self) -> dict[str, float]:
        """Return, by name, the seconds for which each server has sent no token although turns
        wait."""
        return shortest(self.router.silent_s, self.mirrors.silent_s)

    def _waits(self) -> list[Wait]:
        """Return the waits of turns for the tokens of a server."""
        now, silent_s = time.monotonic(), self.silent_s
        return [Wait("turns", f"tokens of {n}", now - s, n) for n, s in silent_s.items() if s > 0]

    @property
    def counters(self) -> dict[str, int]:
        """Return the router's counters, summed over all processes (`router.COUNTERS`)."""
        found = Counter(self.router.counters)
        found.update(self.mirrors.counters)
        return dict(found)

    async def wait_serving(self) -> None:
        """Wait until some engine serves.

        Raises:
            InfraError: no engine served within `engine.start_timeout_s`.
        """
        await wait_serving(self.router, timeout_s=self.setup.engine.start_timeout_s)

    async def take(self, version: int, file: Path) -> None:
        """Serve only `version`, with the weights in `file`, until the next `take`.

        The file stays there for servers that return. For fleets without publications.

        Raises:
            EngineError, WeightsError: a server did not load the version.
        """
        async with self.membership:
            self._weights_file = file
            if version == self.version and not self.waiting:
                return
            self.version = version
            present = self._answering()
            self.router.begin_update(version)
            try:
                for server in present:
                    await server.engine.update_weights(str(file), version=version)
                    if not server.serves:
                        self._serve(server)
            finally:
                names = [server.name for server in present]
                self.router.end_update(version, names, incarnation=self.incarnation)

    # ------------------------------------------------------------------ one server
    async def _lost(self, server: Server) -> Exception:
        died = await server.ended()
        self.leave(server)
        log.warning("%s is out of service: %s", server.name, died)
        return died

    async def _start_again(self, server: Server) -> Exception | None:
        try:
            async with self.turns.starting_server(server):
                await server.restart()
                await server.ready()
                await self.join(server)
        except (ProcessDied, EngineError, WeightsError, ConfigError, TimeoutError) as error:
            log.warning("%s did not come back: %s", server.name, error)
            return error
        self.restarts += 1
        state = "serves again" if server.name in self.router.serving else "waits for weights"
        log.info("%s %s; policy version %d is current", server.name, state, self.version)
        return None

    async def _give_up(self, server: Server, lost: Exception) -> None:
        """Give up a server permanently, and end its remaining processes; see `Supervisor`."""
        await server.retire(str(lost))
        await super()._give_up(server, lost)

    async def join(self, server: Server) -> EngineInfo:
        """Update a server that answers to the current version, and put it in service.

        If only a publication can do that, it waits for the next one.
        """
        async with asyncio.timeout(2 * self.setup.weights.update_timeout_s):
            await self.membership.acquire()
        try:
            info = await server.engine.info()
            if self._is_behind(server, info) and not await self._updated(server, info):
                self.waiting.add(server.name)
            else:
                self._serve(server)
            return info
        finally:
            self.membership.release()

    def _is_behind(self, server: Server, info: EngineInfo) -> bool:
        """Return whether a server must be updated to the current version; the label of an attached
        server is not reliable."""
        return isinstance(server, AttachedServer) or info.version != self.version

    async def _updated(self, server: Server, info: EngineInfo) -> bool:
        """Update a server to the current version; return False if only a publication can."""
        if not self.version and isinstance(server, OwnServer):
            await server.engine.name_version(0)  # it started with the model's own weights
            return True
        path = self._weights_file
        if path is None:
            if self._weights_dir is None or not self.setup.weights.leaves_files:
                return False
            path = self._weights_dir / version_name(self.version, incarnation=self.incarnation)
        if not path.exists():
            return False
        try:
            await server.engine.update_weights(str(path), version=self.version)
        except AdapterRefused:
            return False
        return True
