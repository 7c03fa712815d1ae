"""The option `--dry-run`, which shows the processes that a run would start and their places, and
runs that start as a Slurm job."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from agentgym_rl.cluster import cluster_kind, cluster_of
from agentgym_rl.config import Config
from agentgym_rl.config.file import read_file
from agentgym_rl.core import flat, version_label
from agentgym_rl.engines import engine_process
from agentgym_rl.models import model_folder, resolve_paths, with_model_defaults
from agentgym_rl.rollout import check_policy
from agentgym_rl.run import producer_kind
from agentgym_rl.run.train import checked
from agentgym_rl.runtime import log, run_interruptible
from agentgym_rl.storage.run_folder import MARK, kind_of, next_run_dir
from agentgym_rl.trainer import trainer_processes

from .command import overrides_of
from .output import print_result

_TOKEN = "ARL_TOKEN"


async def dry_run(config: Config, run_dir: Path, *, resumes: bool = False) -> str:
    """Return the processes of a run in `run_dir` with their places and command lines, as text.

    Addresses that are known only at run time are written ADDRESS and PORT.

    Raises:
        ConfigError: the cluster is not reachable, or too small.
    """
    engine, config_file = config.own_engine, run_dir / MARK
    async with cluster_of(config) as places:
        lines = [f"run folder  {run_dir}", "", *places.lines()]
        lines += config.cluster.notes()
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
    others = producer_kind(config).processes(config, config_file, controller_url=controller_url)
    for spec in (*engines, *ranks, *others):
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
        config = with_model_defaults(config, model_folder(config.model, config.env.id))
    config = resolve_paths(config)
    run_dir = resume or next_run_dir(config.run, kind)
    if not config.cluster.kind.submits:
        text = run_interruptible(lambda: dry_run(config, run_dir, resumes=resume is not None))
        text = "\n".join([*_files(args), text])
        found = {"config": config.model_dump(mode="json"), "run": str(run_dir), "text": text}
        print_result(found, text, as_json=args.json)
        return 0
    config = config.model_copy(update={"run": "" if resume else str(run_dir)})
    job = cluster_kind(config.cluster).job(config, run_dir, partial(_command, args, resume))
    if args.dry_run:
        found = {"config": config.model_dump(mode="json"), "script": job.script}
        print_result(found, job.script, as_json=args.json)
        return 0
    done = job.submit()
    answer = {"job": str(done.job), "submitted": done.answer}
    print_result(answer, done.text, as_json=args.json)
    return 0


def _files(args: Namespace) -> Iterator[str]:
    """Yield the configuration files in their order, and of several the file and the flags that each
    value comes from."""
    files: Sequence[Path] = getattr(args, "config_files", None) or ()
    if not files:
        return
    yield f"configuration  {', then '.join(map(str, files))}"
    kept = flat(args.config) if len(files) > 1 else {}
    found = {
        key: (json.dumps(value, default=str), file)
        for file in files
        for key, value in flat(read_file(file)).items()
        if key in kept
    }
    found |= {key: (value, "flags") for key, value in overrides_of(args).items() if kept}
    yield from (f"  {key} = {value}   ({source})" for key, (value, source) in found.items())
    yield ""


def _command(args: Namespace, resume: Path | None, config_file: Path) -> list[str]:
    """Return the command line that does the run on the nodes of the job."""
    return [
        *(sys.executable, "-m", "agentgym_rl", args.command),
        *("--config", str(config_file)),
        *(("--resume", str(resume)) if resume else ()),
    ]
