"""The option `--dry-run`, which shows the processes that a run would start and their places, and
runs that start as a Slurm job."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from agentgym_rl.cluster import slurm
from agentgym_rl.cluster.demand import Node, check, demands, table
from agentgym_rl.cluster.processes import cluster_of
from agentgym_rl.config import Config, dump_record, may_use_gpu
from agentgym_rl.core.engine import version_label
from agentgym_rl.engines.launch import engine_process
from agentgym_rl.models.fitted import fitted
from agentgym_rl.models.resolve import model_folder, resolve_paths
from agentgym_rl.rollout.player import check_policy
from agentgym_rl.run.train import checked
from agentgym_rl.runtime import log
from agentgym_rl.runtime.signals import run_interruptible
from agentgym_rl.storage.run_folder import MARK, kind_of, next_run_dir
from agentgym_rl.trainer.launch import trainer_processes
from agentgym_rl.workers.workers import worker_process

from .output import print_json

_TOKEN = "ARL_TOKEN"


async def dry_run(config: Config, run_dir: Path, *, resumes: bool = False) -> str:
    """Return the processes of a run in `run_dir` with their places and command lines, as text.

    Addresses that are known only at run time are written ADDRESS and PORT.

    Raises:
        ConfigError: the cluster is not reachable, or too small.
    """
    engine, config_file = config.own_engine, run_dir / MARK
    async with cluster_of(config) as (nodes, asked):
        lines = [f"run folder  {run_dir}", ""]
        if nodes:
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
    controller_url = "http://ADDRESS:PORT"
    label = version_label(0, incarnation=0)
    engines = [
        engine_process(engine, config_file, index=index, label=label, host="ADDRESS", port="PORT")
        for index in range(0 if engine.attached else engine.num_servers)
    ]
    ranks = trainer_processes(
        config.trainer,
        config_file,
        run_dir=run_dir,
        weights_dir=Path("WEIGHTS"),
        controller_url=controller_url,
        rendezvous="tcp://ADDRESS:PORT",
        token="",
        resume=Path("CHECKPOINT") if resumes else None,
    )
    cpus = config.rollout.worker_cpus
    workers = [
        worker_process(config_file, index=index, cpus=cpus, controller_url=controller_url, token="")
        for index in range(config.rollout.workers)
    ]
    for spec in (*engines, *ranks, *workers):
        env = [f"{key}={'...' if key == _TOKEN else value}" for key, value in spec.env.items()]
        lines += [f"  {spec.name}", f"    {' '.join([*env, shlex.join(spec.argv)])}"]
    return "\n".join(lines)


def show_or_submit(args: Namespace, config: Config, *, resume: Path | None) -> int:
    """Print what the run would start, or write and submit the Slurm job that starts it."""
    log.setup(config.logging.level)
    if args.command == "train":
        kind = kind_of(config.env.id, config.agent.id)
        config = run_interruptible(partial(checked, config, say=lambda text: None))
    else:
        kind = "serve"
        check_policy(config, config.own_engine)
        config = fitted(config, model_folder(config.model, config.env.id))
    config = resolve_paths(config)
    run_dir = resume or next_run_dir(config.run, kind)
    if config.cluster.type != "slurm":
        text = run_interruptible(lambda: dry_run(config, run_dir, resumes=resume is not None))
        print_json({"text": text}) if args.json else print(text)
        return 0
    config = config.model_copy(update={"run": "" if resume else str(run_dir)})
    asked = demands(config, gpus=config.cluster.gpus_per_node > 0)
    text = slurm.script(config.cluster, asked, run_dir, _command(args, run_dir, resume))
    if args.dry_run:
        print_json({"script": text}) if args.json else print(text)
        return 0
    job = slurm.write_job(run_dir, text, config=dump_record(config))
    said = slurm.submit(job)
    if args.json:
        print_json({"job": str(job), "submitted": said})
    elif said:
        print(f"{said}: {job}\nits output is in {run_dir / 'slurm.log'}")
    else:
        how = f"sbatch {shlex.quote(str(job))}"
        print(f"wrote {job}; sbatch is not installed here: submit it with `{how}`")
    return 0


def _command(args: Namespace, run_dir: Path, resume: Path | None) -> list[str]:
    """Return the command line that starts the run on the nodes of the job."""
    return [
        *(sys.executable, "-m", "agentgym_rl", args.command),
        *("--config", str(run_dir / "slurm.toml")),
        *(("--resume", str(resume)) if resume else ()),
    ]
