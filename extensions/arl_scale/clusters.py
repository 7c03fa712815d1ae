"""The kinds of clusters of several machines, as a run finds them: Ray, and Slurm, whose job starts
Ray. They refuse what conflicts with them, check resources, and write jobs."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import shlex
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_rl.cluster import Cluster, Demand, Job, Places, Processes, Submitted
from agentgym_rl.cluster.processes import submitted
from agentgym_rl.cluster.resources import demands
from agentgym_rl.config import (
    ClusterConfig,
    Config,
    ServerEngineConfig,
    dump_record,
)
from agentgym_rl.core import ConfigError, install_command
from arl_scale import slurm
from arl_scale.demand import Node, check, table
from arl_scale.keys import NodeKeys

if TYPE_CHECKING:  # imports that take a while
    from agentgym_rl.cluster import Forks

log = logging.getLogger(__name__)


def conflicts_of_nodes(config: Config) -> Iterator[str]:
    """Yield an error for each part of a configuration that works only on one machine."""
    where = f"cluster.type {config.cluster.type!r}"
    server_gpus = isinstance(config.engine, ServerEngineConfig) and config.engine.gpus
    if config.trainer.gpus or server_gpus:
        yield f"{where}: GPUs are given out there; leave out trainer.gpus and engine.gpus"
    if config.weights.transport == "ipc":
        yield (
            f"weights.transport 'ipc' needs engines on the trainer's own devices, and {where} "
            "keeps them apart; use nccl or gloo"
        )


class RayCluster(Cluster):
    """The kind of runs whose engines, ranks and workers are on the nodes of a Ray cluster."""

    def conflicts(self, config: Config) -> Iterator[str]:
        return conflicts_of_nodes(config)

    @contextlib.asynccontextmanager
    async def connected(self, config: Config) -> AsyncGenerator[Places]:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(f"cluster.type 'ray' needs Ray: {install_command('ray')}")
        from arl_scale.ray_nodes import connected

        async with connected(config.of(NodeKeys)) as nodes:
            gpus = any(node.gpus for node in nodes)
            asked = demands(config, gpus=gpus)
            check(asked, nodes)
            engine = config.own_engine
            on_cpu = engine.runs_on == "cpu"
            if config.eval.scheduled and gpus and not on_cpu:
                # Ray does not know the engine of evaluations, which runs on the machine of `arl
                # train`.
                raise ConfigError(
                    "cluster.type 'ray': evaluations on schedule (eval.every, eval.every_minutes) "
                    "would take a GPU that Ray gives to others. Evaluate checkpoints instead: "
                    "trainer.checkpoint_every, and arl eval --checkpoint"
                )
            log.info("Ray has the requested resources\n%s", table(asked, nodes))
            yield _Nodes(config, nodes, asked)


class _Nodes(Places):
    """The nodes of a Ray cluster, and the resources that the run requests there."""

    def __init__(self, config: Config, nodes: Sequence[Node], asked: Sequence[Demand]) -> None:
        self._keys, self._stop_timeout_s = config.of(NodeKeys), config.cluster.stop_timeout_s
        self._nodes, self._demands = nodes, asked

    def lines(self) -> list[str]:
        nodes, asked = self._nodes, self._demands
        several = "s" * (len(nodes) != 1)
        placed = check(asked, nodes)
        return [
            f"Ray at {self._keys.address}, {len(nodes)} node{several}",
            *(table(asked, nodes), "", "one way to place them; Ray finds its own"),
            *(f"  {name:<28}{' '.join(names)}" for name, names in placed.items()),
        ]

    @contextlib.asynccontextmanager
    async def processes(
        self, run_dir: Path, weights_dir: Path, *, forks: Forks | None
    ) -> AsyncGenerator[Processes]:
        from arl_scale.ray_processes import RayProcesses

        async with RayProcesses(
            run_dir / "logs",
            start_timeout_s=self._keys.start_timeout_s,
            stop_timeout_s=self._stop_timeout_s,
        ) as processes:
            await processes.reserve(self._demands, shared=[run_dir, weights_dir])
            yield processes


class SlurmCluster(Cluster):
    """The kind of runs that a Slurm job does, on the Ray cluster that it starts."""

    submits = True

    def conflicts(self, config: Config) -> Iterator[str]:
        return conflicts_of_nodes(config)

    def has_gpus(self, cluster: ClusterConfig) -> bool:
        return cluster.part(NodeKeys).gpus_per_node > 0

    def job(self, config: Config, run_dir: Path, command: Callable[[Path], Sequence[str]]) -> Job:
        keys = config.of(NodeKeys)
        asked = demands(config, gpus=keys.gpus_per_node > 0)
        words = command(run_dir / slurm.CONFIG)
        text = slurm.script(keys, asked, run_dir, words)
        return _SlurmJob(run_dir, text, dump_record(config))

    def connected(self, config: Config) -> AbstractAsyncContextManager[Places]:
        raise submitted(config.cluster)


class _SlurmJob(Job):
    def __init__(self, run_dir: Path, text: str, config: str) -> None:
        self._run_dir, self._text, self._config = run_dir, text, config

    @property
    def script(self) -> str:
        return self._text

    def submit(self) -> Submitted:
        job = slurm.write_job(self._run_dir, self._text, config=self._config)
        said = slurm.submit(job)
        text = f"{said}: {job}\nits output is in {self._run_dir / 'slurm.log'}"
        if not said:
            how = f"sbatch {shlex.quote(str(job))}"
            text = f"wrote {job}; sbatch is not installed here: submit it with `{how}`"
        return Submitted(job, said, text)


RAY, SLURM = RayCluster(), SlurmCluster()
