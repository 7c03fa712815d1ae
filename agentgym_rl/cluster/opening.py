"""The processes of a run, on the local machine or the cluster of the configuration."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from agentgym_rl.config import Config
from agentgym_rl.core.errors import ConfigError

from .demand import Node, check, demands, table
from .forking import Forks
from .local import LocalProcesses
from .processes import Processes

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def cluster_of(config: Config) -> AsyncIterator[list[Node]]:
    """Hold the connection to the run's cluster, after a check that it has enough resources.

    Yields its nodes; none if the run uses only this machine. Enter before a run writes anything.

    Raises:
        ConfigError: there is no such cluster, or it is too small; the message has the table.
    """
    if config.cluster.type != "ray":
        yield []
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("cluster.type 'ray' needs Ray: pip install 'agentgym-rl[ray]'")
    from .ray_nodes import connected

    async with connected(config.cluster) as nodes:
        gpus = any(node.gpus for node in nodes)
        asked = demands(config, gpus=gpus)
        check(asked, nodes)
        _check_evaluations(config, has_gpus=gpus)
        log.info("Ray has what is asked\n%s", table(asked, nodes))
        yield nodes


@contextlib.asynccontextmanager
async def children(
    config: Config, run_dir: Path, weights_dir: Path, *, forks: Forks | None = None
) -> AsyncIterator[Processes]:
    """Open the object that starts and ends the processes of the run; use inside `cluster_of`.

    Raises:
        ConfigError: a node of the cluster cannot take part.
    """
    logs, stop_timeout_s = run_dir / "logs", config.cluster.stop_timeout_s
    if config.cluster.type != "ray":
        async with LocalProcesses(logs, stop_timeout_s=stop_timeout_s, forks=forks) as local:
            yield local
        return
    from .ray_nodes import nodes
    from .ray_processes import RayProcesses

    start_timeout_s = config.cluster.start_timeout_s
    async with RayProcesses(
        logs, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s
    ) as processes:
        await processes.reserve(
            demands(config, gpus=any(node.gpus for node in nodes())),
            shared=[run_dir, weights_dir],
        )
        yield processes


def _check_evaluations(config: Config, *, has_gpus: bool) -> None:
    """Refuse scheduled evaluations that need a GPU: Ray does not know of their engine, which
    runs beside `arl train`."""
    engine = config.own_engine
    takes_gpu = has_gpus and (engine.type == "vllm" or engine.device != "cpu")
    if config.eval.scheduled and takes_gpu:
        raise ConfigError(
            "cluster.type 'ray': evaluations on schedule (eval.every, eval.every_minutes) would "
            "take a GPU that Ray gives to others. Evaluate checkpoints instead: "
            "trainer.checkpoint_every, and arl eval --checkpoint"
        )
