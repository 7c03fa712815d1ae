"""The processes of a run: the interface that starts and ends them, and the kinds of clusters that
provide it. `local.py` implements it for this machine; extensions do it for clusters.

A kind is registered in the group of entry points `agentgym_rl.processes`, under the value of
`cluster.type` that chooses it. Its module is imported whenever a configuration is read, so it
imports slow modules only when they are used.
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
from agentgym_rl.core import ConfigError, ProcessDied, extension_names, load_extension

from .resources import demands
from .spec import ProcessSpec

if TYPE_CHECKING:  # imports that take a while
    from .forking import Forks

GROUP = "processes"


class Processes(Protocol):
    """The children of a run, by name; all of them end with it."""

    @property
    def forks(self) -> Forks | None:
        """Return the client of the fork server for children on this machine; None: there is
        none."""
        ...

    @property
    def host(self) -> str:
        """Return the address at which every child reaches this process."""
        ...

    async def address(self, name: str) -> tuple[str, int]:
        """Return the address at which a child will run, and a port that is free there now."""
        ...

    async def start(self, spec: ProcessSpec) -> None:
        """Start a child; its output is appended to the file `log_path`."""
        ...

    async def end(self, name: str) -> None:
        """Kill a child and its own children, if any process is left, and wait until they are gone.

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
            ProcessDied: the child ended, or was not ready in `timeout_s`.
        """
        ...

    async def ended(self, name: str) -> ProcessDied | None:
        """Wait until a child ends, is frozen, hangs, or its machine is gone; return the event, or
        None for a finite child that ended well."""
        ...


class Places(ABC):
    """The resources of a cluster for a run's processes, while the connection to the cluster is
    open."""

    def lines(self) -> list[str]:
        """Return lines with the resources and the run's demands, for `arl train --dry-run`."""
        return []

    @abstractmethod
    def processes(
        self, run_dir: Path, weights_dir: Path, *, forks: Forks | None
    ) -> AbstractAsyncContextManager[Processes]:
        """Open the object that starts and ends the processes of the run in `run_dir`; all of them
        can access `run_dir` and `weights_dir`. Children on this machine may be forked from `forks`.

        Raises:
            ConfigError: on entry: a node of the cluster cannot be used.
        """


class Cluster(ABC):
    """A kind of clusters: the machines on which a run's processes run, and the starting of
    processes there."""

    here: ClassVar[bool] = False
    """Whether every process runs on this machine."""
    gives_out_devices: ClassVar[bool] = True
    """Whether the cluster chooses the devices of processes, and assigns at most one, or a part of
    one, to each."""
    submits: ClassVar[bool] = False
    """Whether `arl train` submits a job that does the run."""

    def conflicts(self, config: Config) -> Iterator[str]:
        """Yield the problems of a configuration on such a cluster; if there are any, it is
        refused."""
        yield from ()

    def has_gpus(self, cluster: ClusterConfig) -> bool | None:
        """Return whether the processes get GPUs there; None: as this machine has some."""
        return None

    def job(self, config: Config, run_dir: Path, command: Callable[[Path], Sequence[str]]) -> Job:
        """Return the job that does the run in `run_dir`, for a kind that `submits`; `command`
        returns the command line of the run for a configuration file.

        Raises:
            ConfigError: the nodes are too small for the run.
        """
        raise NotImplementedError(f"cluster.type {config.cluster.type!r} submits no jobs")

    @abstractmethod
    def connected(self, config: Config) -> AbstractAsyncContextManager[Places]:
        """Return a context that connects to the cluster, after a check of its resources.

        Raises:
            ConfigError: on entry: there is no such cluster, or it is too small; the message has a
                table of its resources.
        """


@dataclass(frozen=True)
class Submitted:
    """The outcome of a submission."""

    job: Path
    """The file of the job."""
    answer: str
    """The scheduler's answer; empty: it is not installed here, and the user has to submit the
    file."""
    text: str
    """The description of the outcome for the user."""


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
    """The kind `local`: all processes of a run are children of this one."""

    here = True
    gives_out_devices = False

    @contextlib.asynccontextmanager
    async def connected(self, config: Config) -> AsyncIterator[Places]:
        yield _Here(config)


class _Here(Places):
    def __init__(self, config: Config) -> None:
        self._config = config

    def lines(self) -> list[str]:
        needed = demands(self._config, gpus=may_use_gpu("auto"))
        cpus = len(os.sched_getaffinity(0))
        return [
            f"on this machine, {socket.gethostname()}, with {cpus} CPUs",
            *(
                f"  {it.count} x {it.name} of {it.cpus} CPU threads, {it.gpus} GPUs"
                for it in needed
            ),
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
    """Return a context that connects to the run's cluster; see `Cluster.connected`. Enter it before
    the run writes any file."""
    return cluster_kind(config.cluster).connected(config)


def submitted(config: ClusterConfig) -> ConfigError:
    """Return the error for a program that would do a run in this process although it has to be
    submitted."""
    kinds = {name: load_extension(GROUP, name) for name in extension_names(GROUP)}
    others = " or ".join(name for name, kind in kinds.items() if not kind.submits)
    return ConfigError(
        f"cluster.type {config.type!r}: `arl train` submits the job, whose nodes then do the run; "
        f"a program that runs here needs {others}"
    )
