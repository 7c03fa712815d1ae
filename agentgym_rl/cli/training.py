"""The flags of commands that train, and the training run that they start, show or submit."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .command import key_flag, load_configuration, overrides_of, steps_flag
from .output import print_result, progress_of

if TYPE_CHECKING:
    from agentgym_rl.config import Config
    from agentgym_rl.run.launch import Job


def training_flags(parser: ArgumentParser) -> None:
    """Add the flags of a command that trains."""
    from agentgym_rl.config import preset_names

    key_flag(parser, "--run", "run", metavar="DIR", help="run folder (default: runs/<name>)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue a run that ended")
    steps_flag(parser)
    text = "local, ray (on its nodes) or slurm (as a job)"
    key_flag(parser, "--cluster", "cluster.type", metavar="TYPE", help=text)
    text = "address of Ray (default: auto)"
    key_flag(parser, "--address", "cluster.address", metavar="HOST:PORT", help=text)
    parser.add_argument(
        "--dry-run", action="store_true", help="show the processes and commands, start nothing"
    )
    text = "sft: train on the conversations of --data FILE first"
    key_flag(parser, "--init", "init.method", metavar="METHOD", help=text)
    text = f"a published recipe: {', '.join(preset_names())}"
    key_flag(parser, "--preset", "preset", metavar="NAME", help=text)


def run_training(args: Namespace, train: Job) -> int:
    """Run `train` with the configuration of `args`, or show or submit it; return the exit code."""
    config = training_configuration(args)
    if config.cluster.kind.submits or args.dry_run:
        from .launching import show_or_submit

        return show_or_submit(args, config, resume=args.resume and args.resume.resolve())
    from agentgym_rl.report import training_text
    from agentgym_rl.runtime import paced_collections, run_interruptible

    with progress_of(config.logging, total_steps=config.steps) as progress, paced_collections():
        result = run_interruptible(
            lambda: train(config, resume=args.resume, progress=progress),
            hang_s=config.rollout.patience_s,
        )
    print_result(asdict(result), training_text(asdict(result)), as_json=args.json)
    return 0


def training_configuration(args: Namespace) -> Config:
    """Load the configuration of a run, or that of the run to resume, with the flags and dotted keys
    of `args` on top.

    Raises:
        ConfigError: see `load_config` and `resumed_config`; or a key is given twice.
    """
    if args.resume is None:
        return load_configuration(args)
    from agentgym_rl.run import resumed_config

    return resumed_config(args.resume, args.config, overrides_of(args))
