"""The plan of `arl train --dry-run`: the processes a run would start, and their places."""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

from agentgym_rl.cluster.demand import Node, check, demands, table
from agentgym_rl.cluster.opening import cluster_of
from agentgym_rl.cluster.spec import ProcessSpec, may_use_gpu
from agentgym_rl.config import Config, VllmEngineConfig
from agentgym_rl.core.engine import version_label
from agentgym_rl.engines.launch import engine_process
from agentgym_rl.storage.run_folder import MARK, next_run_dir
from agentgym_rl.trainer.launch import trainer_processes
from agentgym_rl.workers.launch import worker_process

_TOKEN = "ARL_TOKEN"


async def dry_run(config: Config, *, kind: str = "", resume: Path | None = None) -> str:
    """Return the processes of a run with their places and command lines, as text.

    Addresses that are known only at run time are written ADDRESS and PORT.

    Raises:
        ConfigError: the cluster is not reachable, or too small.
    """
    run_dir = resume or next_run_dir(config, kind=kind)
    async with cluster_of(config) as nodes:
        lines = [f"run folder  {run_dir}", ""]
        if nodes:
            asked = demands(config, gpus=any(node.gpus for node in nodes))
            several = "s" * (len(nodes) != 1)
            lines += [f"Ray at {config.cluster.address}, {len(nodes)} node{several}"]
            lines += [table(asked, nodes), "", "one way to place them; Ray finds its own"]
            placed = check(asked, nodes)
            lines += [f"  {name:<28}{' '.join(names)}" for name, names in placed.items()]
        else:
            here = Node(socket.gethostname(), len(os.sched_getaffinity(0)))
            asked = demands(config, gpus=may_use_gpu("auto"))
            lines += [f"on this machine, {here.name}, with {here.cpus} CPUs"]
            lines += [
                f"  {it.count} x {it.name} of {it.cpus} CPU threads, {it.gpus} GPUs" for it in asked
            ]
        if config.cluster.colocated:
            level = config.cluster.sleep_level
            lines += [f"on the same devices: engines sleep (level {level}) while ranks train"]
    lines += ["", "processes"]
    for spec in _processes(config, run_dir, resume):
        env = [f"{key}={'...' if key == _TOKEN else value}" for key, value in spec.env.items()]
        lines += [f"  {spec.name}", f"    {' '.join([*env, shlex.join(spec.argv)])}"]
    return "\n".join(lines)


def _processes(config: Config, run_dir: Path, resume: Path | None) -> Iterator[ProcessSpec]:
    engine, config_file = config.own_engine, run_dir / MARK
    if not (isinstance(engine, VllmEngineConfig) and engine.urls):
        for index in range(engine.num_servers):
            yield engine_process(
                config,
                config_file,
                index=index,
                label=version_label(0, incarnation=0),
                host="ADDRESS",
                port="PORT",
            )
    yield from trainer_processes(
        config,
        config_file,
        run_dir=run_dir,
        weights_dir=Path("WEIGHTS"),
        controller_url="http://ADDRESS:PORT",
        rendezvous="tcp://ADDRESS:PORT",
        token="",
        resume=resume and Path("CHECKPOINT"),
    )
    for index in range(config.rollout.workers):
        yield worker_process(
            config, config_file, index=index, controller_url="http://ADDRESS:PORT", token=""
        )
