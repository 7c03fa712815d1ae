"""Child processes on the nodes of a Ray cluster: what `local.py` does on one machine.

Ray places and reserves; the processes are the same ones, with the same command lines. Each has an
actor beside it, its host, which starts it where Ray has put it, as its own child: whatever ends the
host, or its node, ends the process. Ray notices a dead node after tens of seconds, so hosts are
asked for a sign of life every second.

The run's folder has to be one that every node sees: configuration, logs and checkpoints are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentgym_rl.errors import ConfigError, ProcessDied
from agentgym_rl.process import ProcessSpec, free_port

from .demand import Demand, Node, check
from .local import LocalProcesses

log = logging.getLogger(__name__)

BEAT_S = 1.0
SILENCE_LIMIT_S = 5.0
CONTROL_TIMEOUT_S = 60.0
"""For what a host does at once, its own start included."""

_STRATEGIES = {"rollout": "SPREAD"}
"""Of the kinds of process that Ray shall not put close together."""


class _Host:
    """The actor beside one process: its parent, on the node that Ray chose."""

    def __init__(self, logs: str, stop_timeout_s: float) -> None:
        self._processes = LocalProcesses(Path(logs), stop_timeout_s=stop_timeout_s)

    async def address(self) -> tuple[str, int]:
        """This node's address, and a port of it that is free now."""
        address = ray.util.get_node_ip_address()
        return address, free_port(address)

    async def beat(self) -> None:
        """A sign of life."""

    async def start(self, spec: ProcessSpec) -> int:
        await self._processes.__aenter__()
        await self._processes.start(spec)
        return self._processes.pid(spec.name)

    async def ready(self, name: str, timeout_s: float) -> None:
        await self._processes.ready(name, timeout_s=timeout_s)

    async def ended(self, name: str) -> ProcessDied | None:
        return await self._processes.ended(name)

    async def restart(self, name: str) -> int:
        await self._processes.restart(name)
        return self._processes.pid(name)

    async def kill(self, name: str) -> None:
        await self._processes.kill(name)

    async def stop(self) -> None:
        await self._processes.stop()


class RayProcesses:
    """The children of a run. Use as a context manager, in a process that Ray is initialized in.

    `reserve` comes first; the names of processes are those of their demands, "engine-0".
    """

    def __init__(self, logs: Path, *, stop_timeout_s: float) -> None:
        self._logs = logs
        self._stop_timeout_s = stop_timeout_s
        self._groups: dict[str, PlacementGroup] = {}
        self._demands: dict[str, Demand] = {}
        self._hosts: dict[str, Any] = {}
        self._specs: dict[str, ProcessSpec] = {}
        self._pids: dict[str, int] = {}
        self.finished = asyncio.Event()
        """Set by `watch` once every finite child has ended well."""

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

    async def reserve(self, demands: Sequence[Demand], *, timeout_s: float) -> None:
        """Room for these processes: a placement group for each kind, packed on as few nodes as
        hold it, or spread.

        Raises:
            ConfigError: the cluster has not got it, by count or within `timeout_s`.
        """
        check(demands, nodes())
        for demand in demands:
            bundle = {"CPU": float(demand.cpus), "GPU": float(demand.gpus)}
            bundles = [{k: v for k, v in bundle.items() if v}] * demand.count
            group = placement_group(bundles, strategy=_STRATEGIES.get(demand.role, "PACK"))
            self._groups[demand.role], self._demands[demand.role] = group, demand
        try:
            async with asyncio.timeout(timeout_s):
                for group in self._groups.values():
                    await group.ready()
        except TimeoutError:
            raise ConfigError(
                f"the cluster gave no room within {timeout_s:g} s: other jobs hold what is counted "
                "as there (`ray status`)"
            ) from None

    async def address(self, name: str) -> tuple[str, int]:
        """Where the process of that name will run, and a port that is free there."""
        return await self._ask(name, "address")

    async def start(self, spec: ProcessSpec) -> None:
        """Start a child; its output goes to `logs/<name>.log`, after that of an earlier one."""
        self._specs[spec.name] = spec
        self._pids[spec.name] = await self._ask(spec.name, "start", spec)

    async def restart(self, name: str) -> None:
        """Kill what is left of a child, and start it again: on another node if its own is gone."""
        try:
            self._pids[name] = await self._ask(name, "restart", name)
        except ProcessDied as error:
            log.warning("%s; starting it anew", error)
            ray.kill(self._hosts.pop(name))
            await self.start(self._specs[name])

    async def kill(self, name: str) -> None:
        """SIGKILL a child and its own children."""
        await self._ask(name, "kill", name)

    def log_path(self, name: str) -> Path:
        """Where a child's output goes."""
        return self._logs / f"{name}.log"

    def pid(self, name: str) -> int:
        """A child's process id, on its node."""
        return self._pids[name]

    async def ready(self, name: str, *, timeout_s: float) -> None:
        """Wait until a child's health URL answers 200.

        Raises:
            ProcessDied: it ended instead, or was not ready in `timeout_s`.
        """
        await self._ask(name, "ready", name, timeout_s, timeout_s=timeout_s + CONTROL_TIMEOUT_S)

    async def ended(self, name: str) -> ProcessDied | None:
        """Wait until a child ends, stops answering its health URL, or its host is silent."""
        host = self._hosts[name]
        async with asyncio.TaskGroup() as tasks:
            ends = [
                tasks.create_task(_died(name, host.ended.remote(name)), name=f"follow {name}"),
                tasks.create_task(self._silent(name), name=f"heartbeat of {name}"),
            ]
            done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
        return done.pop().result()

    async def _silent(self, name: str) -> ProcessDied | None:
        """Ask a host for signs of life until none comes."""
        host = self._hosts[name]
        while True:
            try:
                await _result(name, host.beat.remote(), timeout_s=SILENCE_LIMIT_S - BEAT_S)
            except ProcessDied as error:
                return error
            await asyncio.sleep(BEAT_S)

    async def watch(self) -> None:
        """Raise as soon as a child dies or stops answering; else run until cancelled.

        Raises:
            ProcessDied: see `LocalProcesses.watch`.
        """
        watched = [spec for spec in self._specs.values() if not spec.restartable]
        try:
            async with asyncio.TaskGroup() as tasks:
                ends = [
                    tasks.create_task(self._watch(it), name=f"watch {it.name}") for it in watched
                ]
                for spec, end in zip(watched, ends, strict=True):
                    if spec.finite:
                        await end
                self.finished.set()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _watch(self, spec: ProcessSpec) -> None:
        died = await self.ended(spec.name)
        if died is not None:
            raise died

    async def stop(self) -> None:
        """End every child, its host, and what was reserved."""
        limit_s = self._stop_timeout_s + CONTROL_TIMEOUT_S
        async with asyncio.TaskGroup() as tasks:
            for name in self._hosts:
                tasks.create_task(self._stop(name, limit_s), name=f"stop {name}")
        for host in self._hosts.values():
            ray.kill(host)
        self._hosts.clear()
        for group in self._groups.values():
            remove_placement_group(group)
        self._groups.clear()

    async def _stop(self, name: str, limit_s: float) -> None:
        with contextlib.suppress(ProcessDied):  # its node is gone, and it with it
            await self._ask(name, "stop", timeout_s=limit_s)

    async def _ask(
        self, name: str, method: str, *arguments: Any, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> Any:
        """What the host of a process says.

        Raises:
            ProcessDied: what the host raised; or it is dead, or says nothing in time.
        """
        host = self._hosts.get(name) or self._make(name)
        return await _result(name, getattr(host, method).remote(*arguments), timeout_s=timeout_s)

    def _make(self, name: str) -> Any:
        role, _, index = name.rpartition("-")
        demand = self._demands[role]
        kind: Any = ray.remote(_Host)
        self._hosts[name] = kind.options(
            num_cpus=demand.cpus,
            num_gpus=demand.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._groups[role], placement_group_bundle_index=int(index)
            ),
        ).remote(str(self._logs), self._stop_timeout_s)
        return self._hosts[name]


def nodes() -> list[Node]:
    """The living nodes of the cluster that Ray is connected to."""
    return [
        Node(
            name=f"{node['NodeManagerAddress']} {node['NodeID'][:6]}",
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[None]:
    """Ray, initialized: "auto" finds the cluster of this machine."""
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


async def _died(name: str, reference: Any) -> ProcessDied | None:
    try:
        return await _result(name, reference)
    except ProcessDied as error:
        return error


async def _result(name: str, reference: Any, *, timeout_s: float | None = None) -> Any:
    try:
        async with asyncio.timeout(timeout_s):
            return await reference
    except TimeoutError:
        raise ProcessDied(f"{name}: its host did not answer within {timeout_s:g} s") from None
    except RayTaskError as error:
        cause = error.cause
        raise (
            cause if isinstance(cause, ProcessDied) else ProcessDied(f"{name}: {error}")
        ) from error
    except RayActorError as error:
        raise ProcessDied(f"{name}: its host is gone: {error}") from error
