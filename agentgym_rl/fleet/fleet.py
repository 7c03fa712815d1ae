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
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from agentgym_rl.cluster.health import was_awake
from agentgym_rl.cluster.local import LocalProcesses
from agentgym_rl.cluster.processes import Processes
from agentgym_rl.cluster.restarts import Supervisor
from agentgym_rl.core.engine import UNKNOWN_VERSION, EngineInfo
from agentgym_rl.core.errors import (
    AdapterRefused,
    ConfigError,
    EngineError,
    ProcessDied,
    WeightsError,
)
from agentgym_rl.engines.client.client import EngineClient
from agentgym_rl.engines.kind import EngineSetup
from agentgym_rl.runtime.tasks import together
from agentgym_rl.runtime.waiting import Wait, watched
from agentgym_rl.storage.run_files import Run
from agentgym_rl.storage.weights_folder import version_name

from .parts import MakeTurns, Mirrors, Turns, shortest
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

LONG_POLL_S = 10.0
_RESUME_TIMEOUT_S = 3.0


class Fleet(Supervisor[Server]):
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
        self.incarnation = incarnation
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
        self.servers = {server.name: server for server in servers}
        self.left.update(self.servers)
        self.agreed: EngineInfo | None = None
        """The common properties of the servers, once they are ready."""
        self.version = version
        self.waiting: set[str] = set()
        """The servers that answer, but need the next publication to get the current version."""
        self.membership = asyncio.Lock()
        """The lock held by a publication from begin to end, and by a server while it joins."""
        self._publishing = False
        self._publishers = incarnation
        """The incarnation of the trainer ranks; engines adopt it with their next publication."""
        self.router = setup.router(lambda name, error: self.suspect(name))
        self.mirrors = Mirrors()
        """The mirrors of the router in other processes that send requests to the same engines."""
        self.turns = turns(self.router, servers=self._answering, give_up=self._distrust)
        """The turns of engines and trainer ranks on shared devices."""

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

    def in_service(self) -> dict[str, EngineClient]:
        """Return the engines that get requests, by name."""
        return {name: self.servers[name].engine for name in self.router.serving}

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
                self.router.end_update(version, [server.name for server in present])

    # ------------------------------------------------------------------ publication
    @property
    def wanted(self) -> bool:
        """Return whether a server needs a publication to get the current version."""
        return bool(self.waiting) and not self._publishing

    async def begin_publication(self, version: int) -> dict[str, str]:
        """Begin a publication; return the URLs, by name, of the engines to which to publish
        `version`.

        Returns {} while there is no engine. A name identifies one life of a server: a restarted
        server has another name, so that it is not mistaken for its predecessor. No server joins
        from here to `end_publication`. Waits up to 10 s for a server that is joining.
        """
        requested_by = self._publishers
        self.turns.let_go()
        if not self._publishing:
            try:
                async with asyncio.timeout(LONG_POLL_S):
                    await self.membership.acquire()
            except TimeoutError:
                return {}
            if requested_by != self._publishers:  # the caller has been replaced
                self.membership.release()
                return {}
            self._publishing = True
            if requested_by != self.incarnation:
                self.router.renew_salts()
        present = {*self.router.serving, *self.waiting}
        targets = [name for name in self.servers if name in present]
        if targets:
            self.router.begin_update(version)
            await self.mirrors.all_know()
            if requested_by != self._publishers:  # given up meanwhile
                return {}
            await self.turns.begin_publication([self.servers[name] for name in targets])
            if requested_by != self._publishers:  # given up meanwhile
                return {}
            answering = {server.name for server in self._answering()}
            targets = [name for name in targets if name in answering]
            if not targets:
                self.router.end_update(version, ())
        if not targets:
            self.turns.give_up_publication()
            self._release()
        servers = [self.servers[name] for name in targets]
        return {server.life: server.url for server in servers}

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None:
        """End a publication: `served` engines serve `version`, `failed` ones leave service.

        Results for an earlier life of a server are ignored.

        Raises:
            ValueError: no publication has begun, or an engine is not known.
        """
        lives = {life: self.servers.get(life.partition("#")[0]) for life in (*served, *failed)}
        if not self._publishing or None in lives.values():
            raise ValueError(f"end of a publication: served {served}, failed {set(failed)}")
        alive = {life: server for life, server in lives.items() if server and server.life == life}
        try:
            for life in failed.keys() & alive.keys():
                log.warning(
                    "%s is out of service, it did not take policy version %d: %s",
                    *(life, version, failed[life]),
                )
                self.leave(alive[life])
            reached = [alive[life] for life in served if life in alive]
            if served:
                self.version, self.incarnation = version, self._publishers
                for server in self.servers.values():
                    server.engine.incarnation = self.incarnation
            for server in reached:
                if server.name in self.waiting:
                    self._serve(server)
            self.router.end_update(version, [server.name for server in reached])
        finally:
            self._release()
        await self.turns.end_publication([alive[life] for life in served if life in alive])
        for life in failed.keys() & alive.keys():
            await alive[life].retire(failed[life])

    async def replace_publishers(self, incarnation: int) -> None:
        """Replace the lost trainer ranks by new ones, which publish from now on as `incarnation`.

        An unfinished publication is given up: its engines continue with their old or new version
        (tokens record which), until the next publication. An engine with parts of both versions is
        not resumed, and leaves service.
        """
        self._publishers = incarnation
        self.turns.give_up_publication()
        if not self._publishing:
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for server in self.servers.values():
                    if server.serves or server.name in self.waiting:
                        tasks.create_task(self._resume(server), name=f"resume {server.name}")
        finally:
            self._release()

    async def _resume(self, server: Server) -> None:
        """Resume a server that lost ranks may have paused; end a server that does not answer, or
        whose weights they were writing. A sleeping engine stays asleep until the next publication;
        an engine whose weights belong to no version stays paused until then."""
        engine = server.engine
        if engine.asleep:
            return
        try:
            async with asyncio.timeout(_RESUME_TIMEOUT_S):
                served = await engine.served_version()
                if served == UNKNOWN_VERSION and engine.has_spans:
                    if server.name in self.waiting:
                        return
                    raise EngineError("the publication broke off while it was written to")
                await engine.resume()
        except (EngineError, TimeoutError) as error:
            self.leave(server)
            return await server.retire(
                f"it did not resume after a publication was given up: {error!r}"
            )
        which = f"policy version {served}" if engine.has_spans else "its old version or the new one"
        log.info(
            "%s serves %s: a publication was given up, as its trainer is gone", server.name, which
        )

    def _release(self) -> None:
        self._publishing = False
        self.membership.release()

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
            if self._weights_dir is None or self.setup.weights.transport != "shm":
                return False
            path = self._weights_dir / version_name(self.version, incarnation=self.incarnation)
        if not path.exists():
            return False
        try:
            await server.engine.update_weights(str(path), version=self.version)
        except AdapterRefused:
            return False
        return True

    def _serve(self, server: Server) -> None:
        server.serves = True
        self.waiting.discard(server.name)
        self.router.add(
            server.name, server.engine, version=self.version, has_spans=server.engine.has_spans
        )

    def _answering(self) -> list[Server]:
        """Return the servers that serve, or wait for a publication."""
        return [s for s in self.servers.values() if s.serves or s.name in self.waiting]

    async def _distrust(self, server: Server, why: str) -> None:
        """End a server that misbehaves, so that it is restarted."""
        self.leave(server)
        await server.retire(why)

    def leave(self, server: Server) -> None:
        server.serves = False
        self.waiting.discard(server.name)
        self.router.remove(server.name)
