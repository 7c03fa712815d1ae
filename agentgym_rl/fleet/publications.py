"""The publications of policy versions to the servers of a fleet, each from `begin_publication` to
`end_publication`, with a swap of some servers at a time from `begin_swap` to `end_swap`. Lost
trainer ranks are replaced by others, which publish as another incarnation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping

from agentgym_rl.core import UNKNOWN_VERSION, EngineError
from agentgym_rl.engines import EngineClient, Router

from .parts import MakeTurns, Mirrors
from .servers import Server

log = logging.getLogger(__name__)

LONG_POLL_S = 10.0
_RESUME_TIMEOUT_S = 3.0


class Publications:
    """The servers of a fleet, in or out of service, and the publications of versions to them."""

    def __init__(
        self,
        router: Router,
        servers: Iterable[Server],
        *,
        turns: MakeTurns,
        version: int,
        incarnation: int,
    ) -> None:
        self.servers = {server.name: server for server in servers}
        self.version, self.incarnation = version, incarnation
        self.waiting: set[str] = set()
        """The servers that answer, but need the next publication to get the current version."""
        self.membership = asyncio.Lock()
        """The lock held by a publication from begin to end, and by a server while it joins."""
        self._publishing = False
        self._begun: frozenset[str] = frozenset()
        """The lives of the servers that get the version of the publication that began last."""
        self._publishers = incarnation
        """The incarnation of the trainer ranks; engines adopt it with their next publication."""
        self.router = router
        self.mirrors = Mirrors()
        """The mirrors of the router in other processes that send requests to the same engines."""
        self.turns = turns(self.router, servers=self._answering, give_up=self._distrust)
        """The turns of engines and trainer ranks on their devices."""

    def in_service(self) -> dict[str, EngineClient]:
        """Return the engines that get requests, by name."""
        return {name: self.servers[name].engine for name in self.router.serving}

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
        publishers = self._publishers
        self.turns.let_go()
        if not self._publishing:
            try:
                async with asyncio.timeout(LONG_POLL_S):
                    await self.membership.acquire()
            except TimeoutError:
                return {}
            if publishers != self._publishers:  # the caller has been replaced
                self.membership.release()
                return {}
            self._publishing = True
        present = {*self.router.serving, *self.waiting}
        targets = [name for name in self.servers if name in present]
        if targets:
            await self.turns.begin_publication([self.servers[name] for name in targets])
            if publishers != self._publishers:  # given up meanwhile
                return {}
            answering = {server.name for server in self._answering()}
            targets = [name for name in targets if name in answering]
        if not targets:
            self.turns.give_up_publication()
            self._release()
        urls = {self.servers[name].life: self.servers[name].url for name in targets}
        self._begun = frozenset(urls)
        return urls

    async def begin_swap(self, version: int, lives: Iterable[str]) -> None:
        """Begin the swap of servers that have staged `version`: from now on each may serve it.
        Until then, and after `end_swap`, its requests share the KV of the version that it serves.
        """
        alive = self._alive(lives)
        self.router.begin_update(version, [server.name for server in alive.values()])
        await self.mirrors.all_know()

    def end_swap(self, version: int, *, served: Iterable[str], failed: Iterable[str]) -> None:
        """End the swap that began last: `served` servers serve `version`, `failed` ones leave."""
        for server in self._alive(failed).values():
            self.leave(server)
        reached = [server.name for server in self._alive(served).values()]
        self.router.end_update(version, reached, incarnation=self._publishers)

    def _alive(self, lives: Iterable[str]) -> dict[str, Server]:
        """Return the servers of the publication that have not left or restarted, by life."""
        lives = [*lives]
        if not self._publishing or not self._begun.issuperset(lives):
            raise ValueError(f"no publication is in progress to one of: {', '.join(lives)}")
        found = {life: self.servers.get(life.partition("#")[0]) for life in lives}
        return {life: server for life, server in found.items() if server and server.life == life}

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None:
        """End a publication: `served` engines serve `version`, `failed` ones leave service.

        Results for an earlier life of a server, or for one that has left, are ignored.

        Raises:
            ValueError: no publication has begun, or it was not for one of these engines.
        """
        alive = self._alive((*served, *failed))
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
            self._note_renamed({server.name for server in reached})
            for server in reached:
                if server.name in self.waiting:
                    self._serve(server)
        finally:
            self._release()
        await self.turns.end_publication(reached)
        for life in failed.keys() & alive.keys():
            await alive[life].retire(failed[life])

    def _note_renamed(self, served: Collection[str]) -> None:
        """Note the new label of servers that had the weights, so that they did not swap."""
        new = self.version, self.incarnation
        pairs = {it.name: (it.version, it.incarnation) for it in self.router.replicas}
        if renamed := [name for name, has in pairs.items() if name in served and has != new]:
            self.router.begin_update(self.version, renamed)
            self.router.end_update(self.version, renamed, incarnation=self.incarnation)

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

    def _serve(self, server: Server) -> None:
        server.serves = True
        self.waiting.discard(server.name)
        self.router.add(
            *(server.name, server.engine),
            version=self.version,
            incarnation=self.incarnation,
            has_spans=server.engine.has_spans,
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
