"""The processes of a run: the interface that starts and ends them, and its opening. `local.py`
implements it for this machine, `ray_processes.py` for the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from agentgym_rl.config import ClusterConfig, Config
from agentgym_rl.core.errors import ConfigError, ProcessDied

from .demand import Demand, Node, check, demands, table
from .forking import Forks
from .local import LocalProcesses
from .spec import ProcessSpec

log = logging.getLogger(__name__)


class Processes(Protocol):
    """The children of a run, by name; all of them end with it."""

    @property
    def forks(self) -> Forks | None:
        """Return the forks that children of this machine may use; None: there are none."""
        ...

    @property
    def host(self) -> str:
        """Return the address at which every child reaches this process."""
        ...

    async def address(self, name: str) -> tuple[str, int]:
        """Return the address where a child will run, and a port that is free there now."""
        ...

    async def start(self, spec: ProcessSpec) -> None:
        """Start a child; its output goes to `log_path`, after that of an earlier one."""
        ...

    async def end(self, name: str) -> None:
        """Kill what is left of a child and its own children, and wait until it is gone.

        Raises:
            ProcessDied: the child does not end even after SIGKILL.
        """
        ...

    async def forget(self, name: str) -> None:
        """End a child if it exists (see `end`), and free the resources reserved for it.

        Raises:
            ProcessDied: see `end`.
        """
        ...

    async def kill(self, name: str) -> None:
        """Kill a child and its own children with SIGKILL."""
        ...

    def log_path(self, name: str) -> Path:
        """Return the path of a child's log file."""
        ...

    def pid(self, name: str) -> int:
        """Return a child's process id on its machine."""
        ...

    async def ready(self, name: str, *, timeout_s: float) -> None:
        """Wait until a child's health URL answers 200.

        Raises:
            ProcessDied: the child ended instead, or was not ready in `timeout_s`.
        """
        ...

    async def ended(self, name: str) -> ProcessDied | None:
        """Wait until a child ends, is frozen, hangs, or its machine is gone; return the event, or
        None for a finite child that ended well."""
        ...


@contextlib.asynccontextmanager
async def cluster_of(config: Config) -> AsyncIterator[tuple[list[Node], list[Demand]]]:
    """Hold the connection to the run's cluster, after a check that it has enough resources.

    Yields its nodes, and the resources that the run asks them for; none if the run uses only this
    machine. Enter before a run writes anything.

    Raises:
        ConfigError: there is no such cluster, or it is too small; the message has the table.
    """
    if config.cluster.type != "ray":
        yield [], []
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("cluster.type 'ray' needs Ray: pip install 'agentgym-rl[ray]'")
    from .ray_nodes import connected

    async with connected(config.cluster) as nodes:
        gpus = any(node.gpus for node in nodes)
        asked = demands(config, gpus=gpus)
        check(asked, nodes)
        if config.eval.scheduled and gpus and config.own_engine.runs_on != "cpu":
            # Ray does not know of the engine of evaluations, which runs beside `arl train`.
            raise ConfigError(
                "cluster.type 'ray': evaluations on schedule (eval.every, eval.every_minutes) "
                "would take a GPU that Ray gives to others. Evaluate checkpoints instead: "
                "trainer.checkpoint_every, and arl eval --checkpoint"
            )
        log.info("Ray has the requested resources\n%s", table(asked, nodes))
        yield nodes, asked


@contextlib.asynccontextmanager
async def children(
    cluster: ClusterConfig,
    run_dir: Path,
    weights_dir: Path,
    *,
    asked: Sequence[Demand],
    forks: Forks | None = None,
) -> AsyncIterator[Processes]:
    """Open the object that starts and ends the processes of the run; use inside `cluster_of`.
    Nodes of a cluster reserve the resources `asked`.

    Raises:
        ConfigError: a node of the cluster cannot take part.
    """
    logs, stop_timeout_s = run_dir / "logs", cluster.stop_timeout_s
    if cluster.type != "ray":
        async with LocalProcesses(logs, stop_timeout_s=stop_timeout_s, forks=forks) as local:
            yield local
        return
    from .ray_processes import RayProcesses

    start_timeout_s = cluster.start_timeout_s
    async with RayProcesses(
        logs, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s
    ) as processes:
        await processes.reserve(asked, shared=[run_dir, weights_dir])
        yield processes
