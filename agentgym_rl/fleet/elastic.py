"""A fleet whose servers may join and leave during a run; `members.py` has its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Mapping
from functools import cached_property
from typing import Any, Literal, TypeVar

from agentgym_rl.core.errors import InfraError

from .fleet import Fleet
from .servers import Server, check_joins, check_seeds

_MOVE_TIMEOUT_S = 5.0
"""The longest wait for requests to move away from a server that leaves."""

MemberState = Literal["serving", "waiting for weights", "starting", "leaving", "given up"]
T = TypeVar("T")


class ElasticFleet(Fleet):
    """A fleet that changes while `watch` runs, but never during a publication."""

    @cached_property
    def _lives(self) -> Counter[str]:
        """Return the number of lives of servers that have left, by server name."""
        return Counter()

    @property
    def members(self) -> Mapping[str, Server]:
        """Return all servers, in any state."""
        return self._servers

    @property
    def version(self) -> int:
        """Return the current policy version."""
        return self._version

    def state(self, name: str) -> MemberState:
        """Return the reported state of a server."""
        if name in self.router.serving:
            return "serving"
        if name in self._waiting:
            return "waiting for weights"
        if name not in self._left and name not in self._supervisors:
            return "leaving"
        return "starting" if name in self._left else "given up"

    async def meanwhile(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and return its result; it ends with `watch` at the latest. Its errors are
        raised to the caller.

        Raises:
            InfraError: `watch` does not run yet, or has ended.
        """
        task: asyncio.Task[T | Exception] | None = None
        with contextlib.suppress(RuntimeError):  # the group is being cancelled
            if self._tasks is not None:
                task = self._tasks.create_task(_caught(work), name="engines come and go")
                await asyncio.wait([task])
        if task is None or task.cancelled():
            work.close()
            raise InfraError("the engines are still being started, or the run is ending")
        found = task.result()
        if isinstance(found, Exception):
            raise found
        return found

    async def enlist(self, *, index: int, url: str = "") -> Server:
        """Add one server, with the checks of the start; it gets the current version before it
        serves. A failure leaves nothing behind. Call it in `meanwhile`.

        Raises:
            ProcessDied, EngineError, WeightsError, TimeoutError: the server did not start.
            ConfigError: the server differs from the others.
        """
        server = self._make(index=index, url=url, incarnation=self._incarnation)
        server.first_life = self._lives[server.name]
        assert server.name not in self._servers
        self._servers[server.name] = server
        self._left.add(server.name)
        try:
            await server.start()
            await server.ready()
            info = await server.engine.info()
            if self._agreed is not None:
                check_joins(server.name, info, self._agreed)
            check_seeds(self._servers.values())
            await self._join(server)
            assert self._tasks is not None
            self._watch_over(server, self._tasks)
        except BaseException:
            self._leave(server)
            self._left.discard(server.name)
            await self._release_server(server)
            raise
        return server

    async def dismiss(self, name: str) -> None:
        """Remove a server: its requests in flight continue on other servers from their current
        state, then it is ended. Waits while a version is published. Call it in `meanwhile`.

        Raises:
            InfraError: no other server serves, or this one is being started.
            TimeoutError: a publication took too long.
        """
        async with asyncio.timeout(2 * self.setup.weights.update_timeout_s):
            await self._membership.acquire()
        try:
            server = self._servers.get(name)
            if server is None:
                raise InfraError(f"{name} has left already")
            if not [other for other in self.router.serving if other != name]:
                raise InfraError(f"{name} cannot leave: no other engine serves now")
            if self.state(name) == "starting":
                raise InfraError(f"{name} is being started: ask again once it serves")
            self._supervisors.pop(name).cancel()
            asked = [replica for replica in self.router.replicas if replica.name == name]
            self._leave(server)
            self._left.discard(name)
            await self.followers.all_know()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MOVE_TIMEOUT_S):
                    while any(replica.load for replica in asked):  # noqa: ASYNC110 - they leave now
                        await asyncio.sleep(0.01)
        finally:
            self._membership.release()
        await self._release_server(server)

    async def _release_server(self, server: Server) -> None:
        """End a server and remove it from the members."""
        self._lives[server.name] += server.restarts + 1
        try:
            await server.release()
        finally:
            del self._servers[server.name]


async def _caught(work: Coroutine[Any, Any, T]) -> T | Exception:
    """Return the result or the error: an error belongs to the caller, not to the run."""
    try:
        return await work
    except Exception as error:
        return error
