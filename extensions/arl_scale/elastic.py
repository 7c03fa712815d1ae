"""The joining and leaving of a fleet's servers during a run; `members.py` has its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

from agentgym_rl.core import InfraError
from agentgym_rl.fleet import Fleet, Server, check_joins, check_seeds

_MOVE_TIMEOUT_S = 5.0
"""The longest wait for requests to move away from a server that leaves."""

MemberState = Literal["serving", "waiting for weights", "starting", "leaving", "given up"]
T = TypeVar("T")


class Elastic:
    """The changes of a fleet while its `watch` runs, but never during a publication."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._lives = Counter[str]()
        """The number of lives of servers that have left, by server name."""

    def state(self, name: str) -> MemberState:
        """Return the reported state of a server."""
        if name in self.fleet.router.serving:
            return "serving"
        if name in self.fleet.waiting:
            return "waiting for weights"
        if name not in self.fleet.left and name not in self.fleet.supervisors:
            return "leaving"
        return "starting" if name in self.fleet.left else "given up"

    async def meanwhile(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and return its result; it ends with `watch` at the latest. Its errors are
        raised to the caller.

        Raises:
            InfraError: `watch` does not run yet, or has ended.
        """
        task: asyncio.Task[T | Exception] | None = None
        with contextlib.suppress(RuntimeError):  # the group is being cancelled
            if self.fleet.tasks is not None:
                task = self.fleet.tasks.create_task(_caught(work), name="engines come and go")
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
        server = self.fleet.make_server(index=index, url=url, incarnation=self.fleet.incarnation)
        server.first_life = self._lives[server.name]
        assert server.name not in self.fleet.servers
        self.fleet.servers[server.name] = server
        self.fleet.left.add(server.name)
        try:
            await server.start()
            await server.ready()
            info = await server.engine.info()
            if self.fleet.agreed is not None:
                check_joins(server.name, info, self.fleet.agreed)
            check_seeds(self.fleet.servers.values())
            await self.fleet.join(server)
            assert self.fleet.tasks is not None
            self.fleet.watch_over(server, self.fleet.tasks)
        except BaseException:
            self.fleet.leave(server)
            self.fleet.left.discard(server.name)
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
        async with asyncio.timeout(2 * self.fleet.setup.weights.update_timeout_s):
            await self.fleet.membership.acquire()
        try:
            server = self.fleet.servers.get(name)
            if server is None:
                raise InfraError(f"{name} has left already")
            if not [other for other in self.fleet.router.serving if other != name]:
                raise InfraError(f"{name} cannot leave: no other engine serves now")
            if self.state(name) == "starting":
                raise InfraError(f"{name} is being started: ask again once it serves")
            self.fleet.supervisors.pop(name).cancel()
            leaving = [replica for replica in self.fleet.router.replicas if replica.name == name]
            self.fleet.leave(server)
            self.fleet.left.discard(name)
            await self.fleet.mirrors.all_know()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MOVE_TIMEOUT_S):
                    while any(replica.load for replica in leaving):  # noqa: ASYNC110 - they leave now
                        await asyncio.sleep(0.01)
        finally:
            self.fleet.membership.release()
        await self._release_server(server)

    async def _release_server(self, server: Server) -> None:
        """End a server and remove it from the members."""
        self._lives[server.name] += server.restarts + 1
        try:
            await server.release()
        finally:
            del self.fleet.servers[server.name]


async def _caught(work: Coroutine[Any, Any, T]) -> T | Exception:
    """Return the result or the error: an error belongs to the caller, not to the run."""
    try:
        return await work
    except Exception as error:
        return error
