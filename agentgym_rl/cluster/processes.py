"""The processes of a run: the interface that starts and ends them, and the kinds of clusters that
provide it. `local.py` implements it for this machine; extensions do it for clusters.

A kind is registered in the group of entry points `agentgym_rl.processes`, under the value of
`cluster.type` that chooses it. Its module is imported whenever a configuration is read, so it
imports what is slow only when it is used.
"""

from __future__ import annotations

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from agentgym_rl.config import ClusterConfig, Config, may_use_gpu
from agentgym_rl.core.errors import ConfigError, ProcessDied
from agentgym_rl.core.extensions import extension_names, load_extension

from .resources import demands
from .spec import ProcessSpec

if TYPE_CHECKING:  # imports that take a while
    from .forking import Forks

GROUP = "processes"


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


class Places(ABC):
    """The places of a run's processes, while the connection to its cluster is open."""

    def lines(self) -> list[str]:
        """Return the places and what the run needs of them in words, for `arl train --dry-run`."""
        return []

    @abstractmethod
    def processes(
        self, run_dir: Path, weights_dir: Path, *, forks: Forks | None
    ) -> AbstractAsyncContextManager[Processes]:
        """Open the object that starts and ends the processes of the run in `run_dir`, which all of
        them can reach, like `weights_dir`. Children on this machine may be forked from `forks`.

        Raises:
            ConfigError: on entry: a node of the cluster cannot take part.
        """


class Cluster(ABC):
    """A kind of clusters: where the processes of a run are, and how they get there."""

    here: ClassVar[bool] = False
    """True if every process runs on this machine."""
    gives_out_devices: ClassVar[bool] = True
    """True if the cluster chooses the devices of processes, and gives each at most one, or a part
    of one."""
    submits: ClassVar[bool] = False
    """True if `arl train` submits a job, and the run is done by that."""

    def conflicts(self, config: Config) -> Iterator[str]:
        """Yield what of a configuration does not work there: the configuration is then refused."""
        yield from ()

    def has_gpus(self, cluster: ClusterConfig) -> bool | None:
        """Return whether the processes get GPUs there; None: as this machine has some."""
        return None

    def job(self, config: Config, run_dir: Path, command: Callable[[Path], Sequence[str]]) -> Job:
        """Return the job that does the run in `run_dir`, where `submits`; `command` returns the
        command line that does it with a configuration file.

        Raises:
            ConfigError: the nodes are too small for the run.
        """
        raise NotImplementedError(f"cluster.type {config.cluster.type!r} submits no jobs")

    @abstractmethod
    def connected(self, config: Config) -> AbstractAsyncContextManager[Places]:
        """Return a context that holds the connection, after a check of the resources.

        Raises:
            ConfigError: on entry: there is no such cluster, or it is too small; the message has
                the table.
        """


@dataclass(frozen=True)
class Submitted:
    """The outcome of a submission."""

    job: Path
    """The file of the job."""
    said: str
    """The scheduler's answer; empty: it is not installed here, and the user submits the file."""
    text: str
    """The outcome in words."""


class Job(ABC):
    """A job that does a run on other machines."""

    @property
    @abstractmethod
    def script(self) -> str:
        """Return the script of the job."""

    @abstractmethod
    def submit(self) -> Submitted:
        """Write the job's files to the run's folder, and submit it.

        Raises:
            ConfigError: the scheduler refuses it.
        """


class LocalCluster(Cluster):
    """The kind of runs whose processes are children of this one."""

    here = True
    gives_out_devices = False

    @contextlib.asynccontextmanager
    async def connected(self, config: Config) -> AsyncIterator[Places]:
        yield _Here(config)


class _Here(Places):
    def __init__(self, config: Config) -> None:
        self._config = config

    def lines(self) -> list[str]:
        asked = demands(self._config, gpus=may_use_gpu("auto"))
        cpus = len(os.sched_getaffinity(0))
        return [
            f"on this machine, {socket.gethostname()}, with {cpus} CPUs",
            *(f"  {it.count} x {it.name} of {it.cpus} CPU threads, {it.gpus} GPUs" for it in asked),
        ]

    @contextlib.asynccontextmanager
    async def processes(
        self, run_dir: Path, weights_dir: Path, *, forks: Forks | None
    ) -> AsyncIterator[Processes]:
        from .local import LocalProcesses

        limit_s = self._config.cluster.stop_timeout_s
        async with LocalProcesses(run_dir / "logs", stop_timeout_s=limit_s, forks=forks) as local:
            yield local


LOCAL = LocalCluster()


def cluster_kind(config: ClusterConfig) -> Cluster:
    """Return the kind of a run's cluster."""
    return load_extension(GROUP, config.type)


def cluster_of(config: Config) -> AbstractAsyncContextManager[Places]:
    """Return a context that holds the connection to the run's cluster; see `Cluster.connected`.
    Enter it before a run writes anything."""
    return cluster_kind(config.cluster).connected(config)


def submitted(config: ClusterConfig) -> ConfigError:
    """Return the error of a program that would do a run which has to be submitted."""
    kinds = {name: load_extension(GROUP, name) for name in extension_names(GROUP)}
    others = " or ".join(name for name, kind in kinds.items() if not kind.submits)
    return ConfigError(
        f"cluster.type {config.type!r}: `arl train` submits the job, whose nodes then do the run; "
        f"a program that runs here needs {others}"
    )
