"""The commands that play episodes: `arl train`, `arl serve` and `arl eval`."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from agentgym_rl.cli.parse import load_configuration
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.runtime import log
from agentgym_rl.runtime.gc_pacing import paced_collections
from agentgym_rl.runtime.signals import run_interruptible

from .showing import print_json, progress_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentgym_rl.evaluate.folder import Asked
    from agentgym_rl.run.launch import Job


def train(args: Namespace) -> int:
    from agentgym_rl.run.launch import train

    return _run(args, train)


def serve(args: Namespace) -> int:
    from agentgym_rl.run.launch import launch

    def job() -> Job:
        from agentgym_rl.serve.run import serve

        return serve

    return _run(args, partial(launch, job))


def evaluate(args: Namespace) -> int:
    if args.compare:
        return _compare(args)
    from agentgym_rl.cli.eval_targets import evaluated

    asked = evaluated(args)
    if args.round_robin:
        return _round_robin(args, asked)
    from agentgym_rl.evaluate.command import evaluate_all
    from agentgym_rl.evaluate.folder import compare
    from agentgym_rl.report.evaluation import print_table, summary_lines

    with progress_of(asked[0].config.logging, total_steps=0) as progress, paced_collections():
        found = run_interruptible(
            lambda: evaluate_all(asked, progress, out=args.out),
            hang_s=max(each.config.rollout.patience_s for each in asked),
        )
    if len(found) > 1:
        result = compare(found)
        print_table(result)
    else:
        result = found[0].report
        if not args.json:
            print("\n".join(summary_lines(result)))
    if args.json:
        print_json(result)
    return 0


def _round_robin(args: Namespace, asked: Sequence[Asked]) -> int:
    """Let models play each other, and print their ratings."""
    if len(asked) < 2 or args.out:
        raise ConfigError(
            f"--round-robin with {len(asked)} model{'s' * (len(asked) != 1)}"
            f"{' and --out' * bool(args.out)}: name two or more (--model), and no --out, as games "
            "are not kept"
        )
    from agentgym_rl.evaluate.command import round_robin
    from agentgym_rl.report.evaluation import print_ratings

    with progress_of(asked[0].config.logging, total_steps=0) as progress, paced_collections():
        result = run_interruptible(
            lambda: round_robin(asked, progress),
            hang_s=max(each.config.rollout.patience_s for each in asked),
        )
    print_ratings(result)
    if args.json:
        print_json(result)
    return 0


def _compare(args: Namespace) -> int:
    """Print the comparison table of existing evaluations."""
    given = {name: of for name, of in vars(args).items() if of not in (None, {}, False)}
    clash = [
        "keys of the configuration" if name == "overrides" else f"--{name}"
        for name in sorted(given.keys() - {"command", "json", "compare"})
    ]
    if clash:
        raise ConfigError(f"--compare only reads folders: leave out {', '.join(clash)}")
    from agentgym_rl.evaluate.folder import compare_folders
    from agentgym_rl.report.evaluation import print_table

    comparison = compare_folders(args.compare)
    print_table(comparison)
    if args.json:
        print_json(comparison)
    return 0


def _run(args: Namespace, train: Job) -> int:
    config = load_configuration(args)
    if config.cluster.kind.submits or args.dry_run:
        from .launching import show_or_submit

        return show_or_submit(args, config, resume=args.resume and args.resume.resolve())
    with progress_of(config.logging, total_steps=config.steps) as progress, paced_collections():
        result = run_interruptible(
            lambda: train(config, resume=args.resume, progress=progress),
            hang_s=config.rollout.patience_s,
        )
    from agentgym_rl.report.run import training_text

    if args.json:
        print_json(asdict(result))
    else:
        print(training_text(asdict(result)))
    return 0


def plan(args: Namespace) -> int:
    for name in ("gpus", "cores", "parameters"):
        value = getattr(args, name)
        if (value is not None and value < 0) or (value == 0 and name != "parameters"):
            raise ConfigError(f"--{name} {value:g}: expected a number above 0")
    if args.run is not None and args.config is None:
        from agentgym_rl.storage.run_folder import config_of

        args.config = config_of(args.run, f"--run {args.run}")
    config = load_configuration(args)
    log.setup("warning")  # the run's own messages, of another time
    from agentgym_rl.plan.command import Asked, plan

    planned = plan(
        config,
        Asked(
            run=args.run,
            rates=args.rates,
            gpu=args.gpu,
            parameters=args.parameters,
            gpus=args.gpus,
            cores=args.cores,
            searches=not args.no_search,
            plot=args.plot,
            write_rates=args.write_rates,
        ),
        say=log.now_and_then(),
        tell=partial(print, file=sys.stderr, flush=True),
    )
    if args.json:
        print_json(planned.json())
    else:
        print(planned.text())
    return 0
