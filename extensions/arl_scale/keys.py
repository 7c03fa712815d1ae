"""The keys of rollout workers and of clusters of several machines, which this extension adds to
`rollout` and `cluster`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from agentgym_rl.core import Anytime, PlayKeys, Section


class WorkerKeys(PlayKeys):
    """The processes that play beside that of the run."""

    workers: Anytime[int] = Field(default=0, ge=0)
    """The number of processes that play episodes, each with its own gateway, environments and
    sandboxes; 0: `arl train` itself plays them."""
    worker_cpus: Anytime[int] = Field(default=1, ge=1)
    """The CPUs of each worker with its environments and sandboxes: the threads that libraries like
    numpy may take, and the CPUs that a cluster reserves."""
    max_restarts: Anytime[int] = Field(default=3, ge=0)
    """The maximum number of restarts of each lost worker; the last worker to be lost for good ends
    the run."""

    @property
    def player_processes(self) -> tuple[int, int]:
        return self.workers, self.worker_cpus

    def refused_for_clients(self) -> Iterator[str]:
        if self.workers:
            yield (
                "rollout.workers: `arl serve` plays no episodes, so it has no rollout workers; "
                "leave the key out (several programs may open sessions at its one gateway)"
            )
        yield from super().refused_for_clients()


class NodeKeys(Section):
    """The nodes of a cluster, and the job that starts one."""

    after = "type"

    address: str = "auto"
    """The address of the Ray cluster, HOST:PORT; `auto`: the cluster of this machine."""
    nodes: int = Field(default=1, ge=1)
    """The number of nodes that Ray needs before the run begins; the nodes of the Slurm job."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """The longest wait for those nodes, for room on them, and for the start of a Ray process."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """The Ray runtime environment of the processes: `env_vars` for all of them, `py_modules` with
    the wheel of this package if nodes do not have it."""
    gpus_per_node: int = Field(default=0, ge=0)
    """The number of GPUs to request from Slurm on each node."""
    sbatch: tuple[str, ...] = ()
    """More options of sbatch, as in ["--partition=gpu", "--time=8:00:00"]."""
