"""`arl`: the command line. One JSON object on stdout with --json; everything else on stderr."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import log
from .arguments import load_configuration, parse
from .errors import ArlError, ConfigError, ProcessDied
from .interrupts import run_interruptible

if TYPE_CHECKING:
    from .config import Config
    from .inspect.progress import Progress
    from .registry import Listed
    from .training import TrainResult

_EXIT_CODES: list[tuple[type[BaseException], int]] = [
    (KeyboardInterrupt, 130),
    (ProcessDied, 1),  # before what followed from it
    (ConfigError, 2),
    (ArlError, 1),
    (TimeoutError, 1),
    (OSError, 1),
]


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point of `arl`; exits with 0, 1 (failed), 2 (wrong use) or 130 (interrupted)."""
    sys.path.insert(0, os.getcwd())  # `--env module:Class` finds modules of the current folder
    sys.exit(_main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    try:
        args = parse(argv)
        return _COMMANDS[args.command](args)
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        return _explain(error, as_json="--json" in argv)


def _explain(error: BaseException, *, as_json: bool) -> int:
    """Say in one message why the command ended; returns the exit code.

    Errors that are not ours keep their traceback.
    """
    cause, code = _cause(error)
    message = str(cause) or type(cause).__name__
    if isinstance(cause, KeyboardInterrupt):
        message = "interrupted"
    if as_json:
        _print_json({"error": {"type": type(cause).__name__, "message": message}})
    if code is None:
        raise error
    print(f"arl: {message}", file=sys.stderr)
    return code


def _cause(error: BaseException) -> tuple[BaseException, int | None]:
    """The error inside nested groups that explains the others, and its exit code."""
    leaves = _leaves(error)
    for kind, code in _EXIT_CODES:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf, code
    return leaves[0], None


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


# ---------------------------------------------------------------- commands
def _train(args: Namespace) -> int:
    from .run import train

    return _run(args, train)


def _serve(args: Namespace) -> int:
    from .serve_run import serve

    return _run(args, serve)


def _run(
    args: Namespace, run: Callable[[Config, Progress], Coroutine[Any, Any, TrainResult]]
) -> int:
    config = load_configuration(args)
    with _progress(config, total_steps=config.steps) as progress:
        result = run_interruptible(lambda: run(config, progress))
    if args.json:
        _print_json(asdict(result))
    else:
        print(_training_summary(result))
    return 0


def _training_summary(result: TrainResult) -> str:
    from .inspect.env_text import trained_lines
    from .inspect.pace_text import pace_lines

    before, after = (
        "-" if value is None else f"{value:.3f}"
        for value in (result.eval_before, result.eval_after)
    )
    dropped = sum(result.groups_dropped.values())
    told = result.groups_dropped.keys() - {"stale"}
    causes = f" {dict(result.groups_dropped)}" if told else ""
    outcomes = dict(result.eval_outcomes)
    too_long = outcomes.pop("too_long", 0)
    counted = ("completed", "truncated")
    failed = {k: n for k, n in outcomes.items() if k not in counted}
    return "\n".join(
        [
            "",
            f"held-out reward  {before} → {after}",
            *trained_lines(result.envs),
            *([f"                 left out, as they failed: {failed}"] if failed else []),
            *([f"                 too long to be played: {too_long}"] if too_long else []),
            f"training         {result.steps} batches; {result.duration_s:.0f} s in all",
            f"overlap          {result.overlap:.0%} of tokens sampled while the trainer computed",
            f"staleness        mean {result.staleness_mean:.2f}, max {result.staleness_max:.0f} "
            f"versions; groups dropped: {dropped}{causes}",
            *pace_lines(asdict(result)),
            f"run folder       {result.run}",
            "                 reward.png  metrics.jsonl  episodes.db  checkpoints/  export/",
            "",
            f"next: arl eval --run {result.run} --eval.temperature=0",
        ]
    )


def _eval(args: Namespace) -> int:
    if args.compare:
        return _compare(args)
    from .eval_arguments import evaluated

    asked = evaluated(args)
    from .eval_compare import compare
    from .eval_run import evaluate_all
    from .inspect.eval_text import print_table, summary_lines

    with _progress(asked[0].config, total_steps=0) as progress:
        found = run_interruptible(lambda: evaluate_all(asked, progress, out=args.out))
    if len(found) > 1:
        result = compare(found)
        print_table(result)
    else:
        result = found[0].report
        if not args.json:
            print("\n".join(summary_lines(result)))
    if args.json:
        _print_json(result)
    return 0


def _compare(args: Namespace) -> int:
    """The table of evaluations that are there already."""
    given = {name: value for name, value in vars(args).items() if value not in (None, {})}
    clash = [
        "keys of the configuration" if name == "overrides" else f"--{name}"
        for name in sorted(given.keys() - {"command", "json", "compare"})
    ]
    if clash:
        raise ConfigError(f"--compare plays nothing: leave out {', '.join(clash)}")
    from .eval_compare import compare_folders
    from .inspect.eval_text import print_table

    comparison = compare_folders(args.compare)
    print_table(comparison)
    if args.json:
        _print_json(comparison)
    return 0


def _audit(args: Namespace) -> int:
    log.setup()
    from .audit.run import audit
    from .inspect.audit_report import audit_text

    report = audit(
        args.run, threshold=args.threshold, untrained=args.all, on_progress=_counting("audited")
    )
    if args.json:
        _print_json(report)
    else:
        print(audit_text(report))
    return 0 if report["passed"] else 1


def _export(args: Namespace) -> int:
    log.setup()
    if not args.sft:
        raise ConfigError("arl export writes supervised data: say so with --sft")
    from .inspect.export_text import export_lines
    from .sft import Wanted, export_sft

    wanted = Wanted(form=args.format, min_reward=args.min_reward, split=args.split)
    counting = _counting("read", "episodes")
    report = export_sft(args.folder, args.out, wanted, on_progress=counting)
    if args.json:
        _print_json(report)
        return 0
    print("\n".join(export_lines(report)))
    return 0


def _reverify(args: Namespace) -> int:
    log.setup()
    from .inspect.reverify_report import reverify_text
    from .reverify.run import reverify

    counting = _counting("played again", "episodes")
    report = run_interruptible(
        lambda: reverify(args.run, args.overrides, write=args.write, on_progress=counting)
    )
    if args.json:
        _print_json(report)
    else:
        print(reverify_text(report))
    return 1 if report["changed"] else 0


def _list(args: Namespace) -> int:
    from .registry import listing

    rows = [*listing("env"), *listing("agent"), *listing("sandbox")]
    if args.json:
        _print_json({"rows": [_row(row) for row in rows]})
        return 0
    for row in rows:
        broken = row.error.strip().splitlines()[-1:] or [""]
        text = row.spec.description if row.spec else f"BROKEN: {broken[0]}"
        print(f"{row.kind:<8} {row.id:<18} {text}")
    return 0


def _row(row: Listed) -> dict[str, str]:
    description = row.spec.description if row.spec else ""
    return {"kind": row.kind, "id": row.id, "description": description, "error": row.error}


def _check(args: Namespace) -> int:
    from .check.command import check, criteria_text

    if args.list:
        print(criteria_text())
        return 0
    if not args.env:
        raise ConfigError("arl check ENV: which environment? `arl list` shows those there are")
    report = check(load_configuration(args), args)
    if args.json:
        _print_json(report.to_json())
    return 0 if report.passed else 1


def _doctor(args: Namespace) -> int:
    config = load_configuration(args)
    log.setup(config.logging.level)
    from .inspect.probe_report import probe_text
    from .registry import make_sandbox

    report = asyncio.run(make_sandbox(config.sandbox.id, **config.sandbox.options).probe())
    if args.json:
        _print_json({**asdict(report), "ok": report.ok})
    else:
        print(probe_text(report))
    return 0 if report.ok else 1


def _engine(args: Namespace) -> int:
    config = load_configuration(args)
    log.setup(config.logging.level)
    engine = config.own_engine
    from .model import model_folder

    model_dir = model_folder(config)
    if engine.type == "vllm":
        from .engines.vllm.command import exec_server, server_command

        argv, env = server_command(
            engine,
            model_dir=model_dir,
            served_model_name=config.model.path,
            host=args.host,
            port=args.port,
            index=args.index,
            transport=config.weights.transport,
            seed=config.seed,
        )
        exec_server(argv, env)
    from .engines.embedded.main import serve

    serve(
        model_dir=model_dir,
        config=engine,
        host=args.host,
        port=args.port,
        seed=config.seed,
        weight_version=args.weight_version,
        journal=args.journal,
        served_model_name=config.model.path,
    )
    return 0


def _trainer(args: Namespace) -> int:
    if not os.environ.get("ARL_TOKEN"):
        raise ConfigError(
            "ARL_TOKEN is not set: `arl trainer` is started by `arl train`, which gives it the "
            "controller's token there"
        )
    config = load_configuration(args)
    log.setup(config.logging.level)
    from .model import model_folder
    from .trainer.main import run

    run(
        config,
        model_dir=model_folder(config),
        run_dir=Path(args.run),
        weights_dir=args.weights,
        controller_url=args.controller,
        rank=args.rank,
        world_size=config.trainer.num_ranks,
        rendezvous=args.rendezvous,
    )
    return 0


def _new(args: Namespace) -> int:
    from .scaffold import new_env

    folder = args.into or Path(args.name)
    files = [str(file) for file in new_env(args.name, folder)]
    if args.json:
        _print_json({"files": files})
    else:
        print("\n".join(["wrote", *(f"  {file}" for file in files), ""]))
        print(f"next: pip install -e {folder} && arl check {args.name}")
    return 0


def _bench(args: Namespace) -> int:
    result = _benchmark(args.name).run()
    if args.json:
        _print_json(result)
    else:
        print(json.dumps(result, indent=2))
    return 0


def _benchmark(name: str) -> Any:
    """The module benchmarks/<name>.py of the source checkout (benchmarks are not installed)."""
    root = Path(__file__).parents[1]
    known = sorted(file.stem for file in (root / "benchmarks").glob("[a-z]*.py"))
    if name not in known:
        raise ConfigError(
            f"no benchmark {name!r} (known: {', '.join(known) or 'none here'}); they come with the "
            "source checkout"
        )
    sys.path.insert(0, str(root))
    return importlib.import_module(f"benchmarks.{name}")


_COMMANDS: Mapping[str, Callable[[Namespace], int]] = {
    "train": _train,
    "serve": _serve,
    "eval": _eval,
    "audit": _audit,
    "export": _export,
    "reverify": _reverify,
    "list": _list,
    "check": _check,
    "new": _new,
    "doctor": _doctor,
    "engine": _engine,
    "trainer": _trainer,
    "bench": _bench,
}


# ---------------------------------------------------------------- running and showing
@contextmanager
def _progress(config: Config, *, total_steps: int) -> Iterator[Progress]:
    """The progress view, with this process's logs above it."""
    from .inspect.progress import make_progress

    progress = make_progress(config.logging.progress, total_steps=total_steps)
    try:
        log.setup(config.logging.level)  # now: a live view has put itself in front of stderr
        yield progress
    finally:
        progress.close()


def _counting(done: str, what: str = "tokens") -> Callable[[int], None]:
    """Says on stderr how much is done."""
    total, say = 0, log.now_and_then()

    def count(more: int) -> None:
        nonlocal total
        total += more
        say(f"{done} {total:,} {what}")

    return count


def _print_json(value: Any) -> None:
    print(json.dumps(_finite(value), allow_nan=False))


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no number for, and sets as lists."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
