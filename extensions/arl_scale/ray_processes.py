"""The child processes of a run on the nodes of a Ray cluster, as `cluster/local.py` on
one machine.

Ray reserves and places; the processes are the same. Each has an actor, its host, which is its
parent on the node and watches it as on one machine. Ray notices a dead node only after tens of
seconds, so each host gets a heartbeat request every second.
"""

# ray may not be in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentgym_rl.cluster import ProcessSpec
from agentgym_rl.cluster.health import ASK_AGAIN_S, ASK_EVERY_S
from agentgym_rl.core import ConfigError, ProcessDied
from agentgym_rl.runtime import first_of, together
from agentgym_rl.runtime.frozen import state

from .demand import Demand
from .ray_host import Found, Host, answer, check_found, check_import, end_of
from .ray_nodes import own_address

log = logging.getLogger(__name__)

RETRY_S = 2.0
SILENT_LOOKS = 14
"""The number of looks in a row without an answer after which a host is silent: after 4.5 s. Looks
are counted instead of seconds, because this process itself may have been suspended."""
GIVEN_UP_S = 10.0
"""The timeout of requests to a host about a child that is lost anyway."""
CONTROL_TIMEOUT_S = 60.0
"""The timeout of requests that a host can answer at once."""

_STRATEGIES = {"rollout": "SPREAD"}
"""The placement strategies of roles whose processes Ray should spread; others are packed."""


class RayProcesses:
    """The children of a run (see `Processes`), for a process in which Ray is initialized.

    Use it as a context manager and call `reserve` first. Names are demand roles with an index:
    "engine-0".
    """

    forks = None

    def __init__(self, logs: Path, *, start_timeout_s: float, stop_timeout_s: float) -> None:
        self._logs = logs
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._groups: dict[str, PlacementGroup] = {}
        self._demands: dict[str, Demand] = {}
        self._hosts: dict[str, Any] = {}
        self._found: dict[str, Found] = {}
        self._lost: set[str] = set()
        """The processes whose host does not answer any more."""
        self._pids: dict[str, int] = {}
        self._tokens: dict[str, str] = {}
        """The token files in the shared folders, with their content."""

    async def __aenter__(self) -> RayProcesses:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def host(self) -> str:
        return own_address()

    async def reserve(self, demands: Sequence[Demand], *, shared: Sequence[Path]) -> None:
        """Reserve room for these processes and start a host in each place. Each kind has a
        placement group, packed on few nodes or spread. All nodes must see the folders `shared`.

        Raises:
            ConfigError: the cluster did not provide the room in time; or a node does not see a
                folder, or lacks this package, or has another version of it.
        """
        for demand in demands:
            bundles = [_bundle(demand)] * demand.count
            group = placement_group(bundles, strategy=_STRATEGIES.get(demand.role, "PACK"))
            for role in filter(None, (demand.role, demand.guest)):
                self._groups[role], self._demands[role] = group, demand
        try:
            async with asyncio.timeout(self._start_timeout_s):
                for group in self._groups.values():
                    await group.ready()
        except TimeoutError:
            raise ConfigError(
                f"no room within {self._start_timeout_s:g} s (cluster.start_timeout_s): other jobs "
                "hold what the cluster has in all; see `ray status`"
            ) from None
        self._mark(shared)
        async with together() as tasks:
            for demand in demands:
                for role in filter(None, (demand.role, demand.guest)):
                    for index in range(demand.count):
                        tasks.create_task(self._settle(f"{role}-{index}"))

    async def address(self, name: str) -> tuple[str, int]:
        """Return the address where the process will run, and a port that is free there."""
        if name not in self._hosts:
            await self._settle(name)
        return await self._call(name, "address")

    async def start(self, spec: ProcessSpec) -> None:
        """Start a child; see `Processes.start`."""
        if spec.name not in self._hosts:
            await self._settle(spec.name)
        self._pids[spec.name] = await self._call(spec.name, "start", spec, sys.executable)

    async def end(self, name: str) -> None:
        """Kill what is left of a child; give it up if its host does not answer.

        A later start then uses a new host, on another node if the old one is gone. Processes on an
        unreachable node end when Ray has noticed that the node is dead.
        """
        if name in self._hosts and name not in self._lost:
            try:
                return await self._call(name, "end", name, timeout_s=GIVEN_UP_S)
            except ProcessDied as error:
                log.warning("%s", error)
        self._give_up(name)

    async def forget(self, name: str) -> None:
        """End a child; see `Processes.forget`. Room reserved at the start of the run stays reserved
        for the next process of that name; other room is released."""
        if name not in self._hosts:
            return
        await self.end(name)
        if name in self._groups:
            self._give_up(name)
            remove_placement_group(self._groups.pop(name))

    async def kill(self, name: str) -> None:
        """Kill a child and its own children with SIGKILL; do nothing if its host is lost."""
        if name in self._hosts and name not in self._lost:
            with contextlib.suppress(ProcessDied):
                await self._call(name, "kill", name, timeout_s=GIVEN_UP_S)

    def log_path(self, name: str) -> Path:
        """Return the path of a child's log file, in the run's folder, which all nodes see."""
        return self._logs / f"{name}.log"

    def pid(self, name: str) -> int:
        """Return a child's process id on its node."""
        return self._pids[name]

    async def ready(self, name: str, *, timeout_s: float) -> None:
        """Wait until a child's health URL answers 200.

        Raises:
            ProcessDied: the child or its host ended, or it was not ready in `timeout_s`.
        """
        ready = self._hosts[name].ready.remote(name, timeout_s)
        if error := await first_of(end_of(name, ready), self._silent(name)):
            raise error

    async def ended(self, name: str) -> ProcessDied | None:
        """Wait until a child ends, is frozen, hangs, or its host is silent."""
        ended = self._hosts[name].ended.remote(name)
        return await first_of(end_of(name, ended), self._silent(name))

    async def _silent(self, name: str) -> ProcessDied:
        """Request heartbeats of a host until none comes; return the ProcessDied."""
        host = self._hosts[name]
        async with asyncio.TaskGroup() as tasks:
            while True:
                beat = tasks.create_task(end_of(name, host.beat.remote()), name=f"beat of {name}")
                looks = 0
                while not beat.done() and (looks < SILENT_LOOKS or self._is_slow(name)):
                    await asyncio.wait([beat], timeout=ASK_AGAIN_S)
                    looks += 1
                if not beat.done():
                    beat.cancel()
                    self._lost.add(name)
                    return ProcessDied(
                        f"{name}: its node, or its host there, has been silent for "
                        f"{ASK_EVERY_S + looks * ASK_AGAIN_S:g} s"
                    )
                if died := beat.result():
                    self._lost.add(name)
                    return died
                await asyncio.sleep(ASK_EVERY_S)

    def _is_slow(self, name: str) -> bool:
        """Return whether a silent host is on this machine and alive according to the kernel."""
        found = self._found[name]
        return found.address == self.host and state(found.pid) in ("R", "S", "D")

    async def stop(self) -> None:
        """End every child and its host, and release all reservations."""
        limit_s = self._stop_timeout_s + GIVEN_UP_S
        async with asyncio.TaskGroup() as tasks:
            for name in self._hosts.keys() - self._lost:
                tasks.create_task(self._stop(name, limit_s), name=f"stop {name}")
        for name in list(self._hosts):
            self._give_up(name)
        self._unmark()
        for group in {id(group): group for group in self._groups.values()}.values():
            remove_placement_group(group)
        self._groups.clear()

    async def _stop(self, name: str, limit_s: float) -> None:
        with contextlib.suppress(ProcessDied):  # its node is gone, and the child with it
            await self._call(name, "stop", timeout_s=limit_s)

    def _give_up(self, name: str) -> None:
        self._lost.discard(name)
        if host := self._hosts.pop(name, None):
            ray.kill(host)

    async def _call(
        self, name: str, method: str, *arguments: Any, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> Any:
        """Call a method of a process's host and return its result.

        Raises:
            ProcessDied: the host raised it, is dead, or does not answer in time.
        """
        pending = getattr(self._hosts[name], method).remote(*arguments)
        return await answer(name, pending, timeout_s=timeout_s)

    # ------------------------------------------------------------------ hosts
    async def _settle(self, name: str) -> None:
        """Make the host of a process, and check the node it runs on. Ray places hosts on a dead
        node until it has noticed the death, so this is retried for `start_timeout_s`.

        Raises:
            ConfigError: see `reserve`.
            ProcessDied: no host started.
        """
        deadline = time.monotonic() + self._start_timeout_s
        await self._reserve_more(name)
        while True:
            left_s = deadline - time.monotonic()
            self._hosts[name] = self._make(name)
            try:
                found = await self._call(name, "look", self._tokens, timeout_s=left_s)
            except ProcessDied as error:
                self._give_up(name)
                check_import(error)
                if left_s < RETRY_S:
                    raise
                log.info("%s; trying again for %.0f s", error, left_s)
                await asyncio.sleep(RETRY_S)
            else:
                self._found[name] = found
                return check_found(found)

    async def _reserve_more(self, name: str) -> None:
        """Reserve room for a process beyond those the run began with.

        Raises:
            ConfigError: the cluster did not provide it in time.
        """
        role, _, index = name.rpartition("-")
        if int(index) < self._demands[role].count or name in self._groups:
            return
        group = placement_group([_bundle(self._demands[role])])
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await group.ready()
        except TimeoutError:
            remove_placement_group(group)
            raise ConfigError(
                f"no room for {name} within {self._start_timeout_s:g} s "
                "(cluster.start_timeout_s); see `ray status`"
            ) from None
        self._groups[name] = group

    def _make(self, name: str) -> Any:
        role, _, number = name.rpartition("-")
        cpus, gpus = self._demands[role].share(role)
        own = self._groups.get(name)
        group, index = (own, 0) if own else (self._groups[role], int(number))
        kind: Any = ray.remote(Host)
        return kind.options(
            num_cpus=cpus,
            num_gpus=gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=index
            ),
        ).remote(str(self._logs), self._stop_timeout_s)

    def _mark(self, folders: Sequence[Path]) -> None:
        """Write a file with a random token into each folder."""
        for folder in folders:
            file = folder / f".seen-{secrets.token_hex(4)}"
            text = self._tokens[str(file)] = secrets.token_hex(8)
            file.write_text(text, encoding="utf-8")

    def _unmark(self) -> None:
        for path in self._tokens:
            Path(path).unlink(missing_ok=True)
        self._tokens.clear()


def _bundle(demand: Demand) -> dict[str, float]:
    """Return the resources that one process of this kind needs."""
    bundle = {"CPU": float(demand.cpus), "GPU": float(demand.gpus)}
    return {resource: amount for resource, amount in bundle.items() if amount}
