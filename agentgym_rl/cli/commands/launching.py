"""The option `--dry-run`, and runs that start as a Slurm job."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from pathlib import Path

from agentgym_rl.cluster import slurm
from agentgym_rl.config import Config
from agentgym_rl.models.resolve import resolve_paths
from agentgym_rl.rollout.player import check_policy
from agentgym_rl.run.dry_run import dry_run
from agentgym_rl.run.train import check_played
from agentgym_rl.runtime.signals import run_interruptible
from agentgym_rl.storage.run_folder import next_run_dir

from .showing import print_json


def show_or_submit(args: Namespace, config: Config, *, resume: Path | None) -> int:
    """Print what the run would start, or write and submit the Slurm job that starts it."""
    kind = "serve" if args.command == "serve" else ""
    if args.command == "train":
        run_interruptible(lambda: check_played(config, say=lambda text: None))
    else:
        check_policy(config, config.own_engine)
    config = resolve_paths(config)
    if config.cluster.type != "slurm":
        text = run_interruptible(lambda: dry_run(config, kind=kind, resume=resume))
        print_json({"text": text}) if args.json else print(text)
        return 0
    run_dir = resume or next_run_dir(config, kind=kind)
    config = config.model_copy(update={"run": "" if resume else str(run_dir)})
    text = slurm.script(config, run_dir, _command(args, run_dir, resume))
    if args.dry_run:
        print_json({"script": text}) if args.json else print(text)
        return 0
    job = slurm.write_job(config, run_dir, text)
    said = slurm.submit(job)
    if args.json:
        print_json({"job": str(job), "submitted": said})
    elif said:
        print(f"{said}: {job}\nits output comes to {run_dir / 'slurm.log'}")
    else:
        how = f"sbatch {shlex.quote(str(job))}"
        print(f"wrote {job}; there is no sbatch here: submit it with `{how}`")
    return 0


def _command(args: Namespace, run_dir: Path, resume: Path | None) -> list[str]:
    """Return the command line that starts the run on the nodes of the job."""
    return [
        *(sys.executable, "-m", "agentgym_rl", args.command),
        *("--config", str(run_dir / "slurm.toml")),
        *(("--resume", str(resume)) if resume else ()),
    ]
