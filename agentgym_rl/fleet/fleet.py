"""The engines of a run: started or attached, watched, restarted, and kept at one version.

A server serves only at the current policy version: one that died, fell silent or missed an update
leaves the router at once, and comes back once it has been brought to that version. While a
publication is under way nobody joins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from agentgym_rl.cluster.processes import Processes
from agentgym_rl.config import Config
from agentgym_rl.core.engine import EngineInfo
from agentgym_rl.core.errors import ConfigError, EngineError, ProcessDied, WeightsError
from agentgym_rl.engines.client.client import HttpEngine
from agentgym_rl.runtime.waiting import Wait, watched
from agentgym_rl.storage.weights_folder import version_name

from .checks import agreed, check_seeds, hanging, make_router, wait_serving
from .colocation import Colocation
from .mirrors import Followers, shortest
from .servers import AttachedServer, OwnServer, Server, make_server, make_servers

log = logging.getLogger(__name__)

LONG_POLL_S = 10.0
_RESUME_TIMEOUT_S = 3.0


class Fleet:
    """Use inside `running()`; `watch` must run beside whatever uses `router`.

    `weights_dir`: where the run's policy versions are, for servers that come back; None where the
    policy never changes (evaluation, on servers of its own). `version`: the current one; servers
    that are started serve version 0, and another has to be published to them, unless it is in
    `weights_file`: see `take`. The servers are numbered from `first_index`.
    """

    def __init__(
        self,
        config: Config,
        config_file: Path,
        processes: Processes,
        *,
        model_dir: Path,
        weights_dir: Path | None = None,
        version: int = 0,
        incarnation: int = 0,
        weights_file: Path | None = None,
        first_index: int = 0,
    ) -> None:
        self.restarts = 0
        """Servers that were started again and serve, so far: after a death, or a failed update."""
        self._config = config
        self._weights_dir = weights_dir
        self._weights_file = weights_file
        self._incarnation = incarnation
        servers = make_servers(
            config,
            config_file,
            processes,
            model_dir=model_dir,
            incarnation=incarnation,
            first_index=first_index,
        )
        self._make = partial(make_server, config, config_file, processes, model_dir=model_dir)
        """For servers that come later (elastic.py)."""
        self._servers = {server.name: server for server in servers}
        self._left = set(self._servers)
        """Servers that have not been retired."""
        self._agreed: EngineInfo | None = None
        """What the servers have in common, once they are ready."""
        self._tasks: asyncio.TaskGroup | None = None
        """Of `watch`, while it runs."""
        self._supervisors: dict[str, asyncio.Task[None]] = {}
        self._version = version
        self._waiting: set[str] = set()
        """Servers that answer, and that only the next publication can bring up to date."""
        self._membership = asyncio.Lock()
        """Held by a publication from begin to end, and by a server while it joins."""
        self._publishing = False
        self._publishers = incarnation
        """The incarnation of the trainer ranks, whose next publication makes it the engines'."""
        self.router = make_router(config, lambda name, error: self._suspect(name))
        self.followers = Followers(
            self.router,
            url_of=lambda name: self._servers[name].url,
            on_failure=self._suspect,
        )
        """Other processes that ask the same engines."""
        self.colocation = Colocation(
            config, self.router, servers=self._answering, give_up=self._give_up
        )
        """Whose turn it is, where engines share devices with the trainer."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        """Start the servers (they are not ready yet); close the connections at the end."""
        try:
            for server in self._servers.values():
                await server.start()
            with watched(self._waits):
                yield self
        finally:
            self.colocation.close()
            await self.router.close()
            for server in list(self._servers.values()):
                await server.engine.close()

    async def ready(self) -> EngineInfo:
        """Wait until every server answers, and put them in service; what they agree on.

        Raises:
            ProcessDied: one died or did not answer in time.
            ConfigError: one is not what the configuration asks for.
        """
        infos: dict[str, EngineInfo] = {}

        async def join(server: Server) -> None:
            await server.ready()
            infos[server.name] = await self._join(server)

        try:
            async with asyncio.TaskGroup() as tasks:
                for server in self._servers.values():
                    tasks.create_task(join(server), name=f"start {server.name}")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        check_seeds(self._servers.values())
        self._agreed = agreed(infos)
        self.colocation.servers_started()
        return self._agreed

    async def watch(self) -> None:
        """Bring back every server that dies or falls silent, until cancelled.

        Raises:
            ProcessDied: the last server was retired.
        """
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for server in self._servers.values():
                    self._watch_over(server, self._tasks)
                self._tasks.create_task(self._watch_progress(), name="watch progress")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tasks = None

    def _watch_over(self, server: Server, tasks: asyncio.TaskGroup) -> None:
        watch = tasks.create_task(self._supervise(server), name=f"watch {server.name}")
        self._supervisors[server.name] = watch

    def _suspect(self, name: str) -> None:
        if name in self._servers:  # or it has left since
            self._servers[name].suspect()

    async def _watch_progress(self) -> None:
        """A server that answers its health route may hang all the same: let it be restarted."""
        limit_s = self._config.own_engine.stall_timeout_s
        async for name, silent_s in hanging(lambda: self.silent_s, limit_s=limit_s):
            server = self._servers.get(name)
            if not self._publishing and server is not None:
                await self._give_up(
                    server,
                    f"it was asked, and has sent no token for {silent_s:.0f} s "
                    "(engine.stall_timeout_s)",
                )

    @property
    def silent_s(self) -> dict[str, float]:
        """By name of the servers that are asked: how long none of those who wait got a token."""
        return shortest(self.router.silent_s, self.followers.silent_s)

    def _waits(self) -> list[Wait]:
        """Turns that wait for the tokens of a server."""
        now, silent_s = time.monotonic(), self.silent_s
        return [Wait("turns", f"tokens of {n}", now - s, n) for n, s in silent_s.items() if s > 0]

    @property
    def counters(self) -> dict[str, int]:
        """What happened to turns, whoever asked for them (`router.COUNTERS`)."""
        found = Counter(self.router.counters)
        found.update(self.followers.counters)
        return dict(found)

    def in_service(self) -> dict[str, HttpEngine]:
        """Engines that are asked, by name."""
        return {name: self._servers[name].engine for name in self.router.serving}

    async def wait_serving(self) -> None:
        """Wait until some engine serves.

        Raises:
            InfraError: none did within `engine.start_timeout_s`.
        """
        await wait_serving(self._config, self.router)

    async def take(self, version: int, file: Path) -> None:
        """Serve `version`, whose weights are in `file`, and nothing else until the next `take`:
        the file stays there for servers that come back. For fleets that nobody publishes to.

        Raises:
            EngineError, WeightsError: a server did not take it.
        """
        async with self._membership:
            self._weights_file = file
            if version == self._version and not self._waiting:
                return
            self._version = version
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
        """Whether a server waits for a publication to bring it to the current version."""
        return bool(self._waiting) and not self._publishing

    async def begin_publication(self, version: int) -> dict[str, str]:
        """URLs of the engines that shall get `version`, by name; {} while there is none.

        The names are of a server's life: one that is started again has another, so that nobody
        takes it for the one before. From here to `end_publication` no server joins. None either
        while one is joining, which is waited for, up to 10 s.
        """
        asked_by = self._publishers
        self.colocation.let_go()
        if not self._publishing:
            try:
                async with asyncio.timeout(LONG_POLL_S):
                    await self._membership.acquire()
            except TimeoutError:
                return {}
            if asked_by != self._publishers:  # who asked is gone
                self._membership.release()
                return {}
            self._publishing = True
            if asked_by != self._incarnation:
                self.router.renew_salts()
        present = {*self.router.serving, *self._waiting}
        targets = [name for name in self._servers if name in present]
        if targets:
            self.router.begin_update(version)
            await self.followers.all_know()
            if asked_by != self._publishers:  # given up meanwhile
                return {}
            await self.colocation.begin_publication([self._servers[name] for name in targets])
            if asked_by != self._publishers:  # given up meanwhile
                return {}
            answering = {server.name for server in self._answering()}
            targets = [name for name in targets if name in answering]
            if not targets:
                self.router.end_update(version, ())
        if not targets:
            self.colocation.give_up_publication()
            self._release()
        servers = [self._servers[name] for name in targets]
        return {server.life: server.url for server in servers}

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None:
        """What came of it: `served` engines serve `version`, `failed` ones go out of service.

        What became of a server's life that is over is nobody's concern any more.

        Raises:
            ValueError: no publication has begun, or it names an engine that is none.
        """
        lives = {life: self._servers.get(life.partition("#")[0]) for life in (*served, *failed)}
        if not self._publishing or None in lives.values():
            raise ValueError(f"end of a publication: served {served}, failed {set(failed)}")
        alive = {life: server for life, server in lives.items() if server and server.life == life}
        try:
            for life in failed.keys() & alive.keys():
                log.warning("%s did not take version %d: %s", life, version, failed[life])
                self._leave(alive[life])
            reached = [alive[life] for life in served if life in alive]
            if served:
                self._version, self._incarnation = version, self._publishers
                for server in self._servers.values():
                    server.engine.incarnation = self._incarnation
            for server in reached:
                if server.name in self._waiting:
                    self._serve(server)
            self.router.end_update(version, [server.name for server in reached])
        finally:
            self._release()
        await self.colocation.end_publication([alive[life] for life in served if life in alive])
        for life in failed.keys() & alive.keys():
            await alive[life].retire(failed[life])

    async def replace_publishers(self, incarnation: int) -> None:
        """The trainer ranks are gone; others publish from now on, as `incarnation`.

        What those before had begun is given up: engines that took part go on with what they serve,
        old or new (tokens say which), and each gets what the next publication brings.
        """
        self._publishers = incarnation
        self.colocation.give_up_publication()
        if not self._publishing:
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for server in self._servers.values():
                    if server.serves or server.name in self._waiting:
                        tasks.create_task(self._resume(server), name=f"resume {server.name}")
        finally:
            self._release()

    async def _resume(self, server: Server) -> None:
        """Leave no engine paused by a publisher that is gone; one that does not answer ends. A
        sleeper sleeps on, until the next publication."""
        if server.engine.asleep:
            return
        try:
            async with asyncio.timeout(_RESUME_TIMEOUT_S):
                await server.engine.resume()
        except (EngineError, TimeoutError) as error:
            self._leave(server)
            await server.retire(f"it did not resume after a publication was given up: {error!r}")

    def _release(self) -> None:
        self._publishing = False
        self._membership.release()

    # ------------------------------------------------------------------ one server
    async def _supervise(self, server: Server) -> None:
        """Follow one server's lives until it has used them up."""
        while True:
            died = await server.ended()
            self._leave(server)
            log.warning("%s is out of service: %s", server.name, died)
            while not await self._brought_back(server):
                if server.restarts >= self._config.own_engine.max_restarts:
                    return await self._retire(server, died)

    async def _brought_back(self, server: Server) -> bool:
        limit = self._config.own_engine.max_restarts
        if server.restarts >= limit:
            return False
        server.restarts += 1
        log.info("starting %s again (%d of %d)", server.name, server.restarts, limit)
        try:
            async with self.colocation.starting_server(server):
                await server.restart()
                await server.ready()
                await self._join(server)
        except (ProcessDied, EngineError, WeightsError, ConfigError, TimeoutError) as error:
            log.warning("%s did not come back: %s", server.name, error)
            return False
        self.restarts += 1
        state = "serves again" if server.name in self.router.serving else "waits for weights"
        log.info("%s %s; policy version %d is current", server.name, state, self._version)
        return True

    async def _join(self, server: Server) -> EngineInfo:
        """Bring a server that answers to the current version, and put it in service.

        Where only a publication can bring it there, it waits for the next one.
        """
        async with asyncio.timeout(2 * self._config.weights.update_timeout_s):
            await self._membership.acquire()
        try:
            info = await server.engine.info()
            if self._is_behind(server, info) and not await self._updated(server, info):
                self._waiting.add(server.name)
            else:
                self._serve(server)
            return info
        finally:
            self._membership.release()

    def _is_behind(self, server: Server, info: EngineInfo) -> bool:
        """Whether it must get the current version; the label of one not ours proves nothing."""
        return isinstance(server, AttachedServer) or info.version != self._version

    async def _updated(self, server: Server, info: EngineInfo) -> bool:
        """Give a server the current version; False if only a publication can."""
        if not self._version and isinstance(server, OwnServer):
            await server.engine.name_version(0)  # as it started, with the model's own weights
            return True
        path = self._weights_file
        if path is None:
            if self._weights_dir is None or self._config.weights.transport != "shm":
                return False
            path = self._weights_dir / version_name(self._version, incarnation=self._incarnation)
        if not path.exists():
            return False
        await server.engine.update_weights(str(path), version=self._version)
        return True

    def _serve(self, server: Server) -> None:
        server.serves = True
        self._waiting.discard(server.name)
        self.router.add(
            server.name, server.engine, version=self._version, has_spans=server.engine.has_spans
        )

    def _answering(self) -> list[Server]:
        """Those that serve, or wait for a publication to do so."""
        return [s for s in self._servers.values() if s.serves or s.name in self._waiting]

    async def _give_up(self, server: Server, why: str) -> None:
        """It goes its own ways: let it be started again."""
        self._leave(server)
        await server.retire(why)

    def _leave(self, server: Server) -> None:
        server.serves = False
        self._waiting.discard(server.name)
        self.router.remove(server.name)

    async def _retire(self, server: Server, died: Exception) -> None:
        """Give a server up, and end what is left of it.

        Raises:
            ProcessDied: it was the last one.
        """
        await server.retire(str(died))
        self._left.discard(server.name)
        limit = self._config.own_engine.max_restarts
        if not self._left:
            raise ProcessDied(f"no engine is left after {limit} restarts each; the last: {died}")
        log.error("%s is retired after %d restarts (engine.max_restarts)", server.name, limit)
