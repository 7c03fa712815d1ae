"""The kind of clusters of Ray, as a run finds it: its conflicts, and the check of its resources."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from agentgym_rl.config import ClusterConfig, Config, EmbeddedEngineConfig, ServerEngineConfig
from agentgym_rl.core.errors import ConfigError

from .demand import Node, check, table
from .forking import Forks
from .processes import Cluster, Places, Processes
from .resources import Demand, demands

log = logging.getLogger(__name__)


def conflicts_of_nodes(config: Config) -> Iterator[str]:
    """Yield what of a configuration works only on one machine."""
    where = f"cluster.type {config.cluster.type!r}"
    if config.init.method != "none":
        yield (
            f"{where} has no warm-up (init.method {config.init.method!r}): make it on one "
            "machine, and train its RUN/init/model (--model)"
        )
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
    async def connected(self, config: Config) -> AsyncIterator[Places]:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("cluster.type 'ray' needs Ray: pip install 'agentgym-rl[ray]'")
        from .ray_nodes import connected

        async with connected(config.cluster) as nodes:
            gpus = any(node.gpus for node in nodes)
            asked = demands(config, gpus=gpus)
            check(asked, nodes)
            engine = config.own_engine
            on_cpu = isinstance(engine, EmbeddedEngineConfig) and engine.device == "cpu"
            if config.eval.scheduled and gpus and not on_cpu:
                # Ray does not know of the engine of evaluations, which runs beside `arl train`.
                raise ConfigError(
                    "cluster.type 'ray': evaluations on schedule (eval.every, eval.every_minutes) "
                    "would take a GPU that Ray gives to others. Evaluate checkpoints instead: "
                    "trainer.checkpoint_every, and arl eval --checkpoint"
                )
            log.info("Ray has the requested resources\n%s", table(asked, nodes))
            yield _Nodes(config.cluster, nodes, asked)


class _Nodes(Places):
    """The nodes of a Ray cluster, and the resources that the run asks them for."""

    def __init__(
        self, cluster: ClusterConfig, nodes: Sequence[Node], asked: Sequence[Demand]
    ) -> None:
        self._cluster, self._nodes, self._asked = cluster, nodes, asked

    def lines(self) -> list[str]:
        nodes, asked = self._nodes, self._asked
        several = "s" * (len(nodes) != 1)
        placed = check(asked, nodes)
        return [
            f"Ray at {self._cluster.address}, {len(nodes)} node{several}",
            *(table(asked, nodes), "", "one way to place them; Ray finds its own"),
            *(f"  {name:<28}{' '.join(names)}" for name, names in placed.items()),
        ]

    @contextlib.asynccontextmanager
    async def processes(
        self, run_dir: Path, weights_dir: Path, *, forks: Forks | None
    ) -> AsyncIterator[Processes]:
        from .ray_processes import RayProcesses

        async with RayProcesses(
            run_dir / "logs",
            start_timeout_s=self._cluster.start_timeout_s,
            stop_timeout_s=self._cluster.stop_timeout_s,
        ) as processes:
            await processes.reserve(self._asked, shared=[run_dir, weights_dir])
            yield processes


KIND = RayCluster()
