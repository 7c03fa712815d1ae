"""`arl`: the command line. One JSON object on stdout with --json; everything else on stderr."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from . import __version__, log
from .config import Config, load_config
from .errors import ArlError, ConfigError, ProcessDied

_DESCRIPTION = """\
Train any agent that speaks the OpenAI API, by asynchronous reinforcement learning.

  arl train --env math --agent react          the main job: a laptop CPU, a minute or two
  arl eval  --run runs/NAME                   held-out reward of a finished run
  arl list                                    environments and agents, plugins included
"""
_KEYS = """\
any key of the configuration can be set as --section.key=value, for example
--rollout.max_staleness=1 --trainer.learning_rate=1e-4; examples/math.toml explains them all
"""
_SHORT_FORMS = {
    "env": "env.id",
    "agent": "agent.id",
    "model": "model.path",
    "engine": "engine.type",
    "steps": "steps",
    "seed": "seed",
}

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
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if args.command is None:
        parser.print_help()
        return 2
    try:
        args.overrides = _dotted(rest, allowed=args.takes_config)
        return args.function(args)
    except BaseException as error:
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Say in one message why the command ended; returns the exit code.

    Errors that are not ours keep their traceback.
    """
    causes = _leaves(error)
    for kind, code in _EXIT_CODES:
        for cause in causes:
            if isinstance(cause, kind):
                print(f"arl: {str(cause) or 'interrupted'}", file=sys.stderr)
                return code
    raise error


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors inside nested groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


# ---------------------------------------------------------------- commands
def _train(args: argparse.Namespace) -> int:
    config = _config(args)
    from .inspect.progress import make_progress
    from .run import train

    log.setup(config.logging.level)
    progress = make_progress(config.logging.progress, total_steps=config.steps)
    try:
        result = _run_loop(lambda: train(config, progress))
    finally:
        progress.close()
    if args.json:
        _print_json(_as_dict(result))
    else:
        print(_training_summary(result))
    return 0


def _training_summary(result: Any) -> str:
    before, after = (
        "-" if value is None else f"{value:.3f}"
        for value in (result.eval_before, result.eval_after)
    )
    dropped = sum(result.groups_dropped.values())
    return "\n".join(
        [
            "",
            f"held-out reward   {before} → {after}",
            f"training          {result.steps} batches in {result.duration_s:.0f} s, "
            f"{result.overlap:.0%} of tokens sampled while the trainer computed",
            f"staleness         mean {result.staleness_mean:.2f}, max {result.staleness_max:.0f} "
            f"versions; {dropped} groups dropped",
            f"run folder        {result.run}  (metrics.jsonl, reward.png, episodes.db, "
            "checkpoints/, export/)",
            "",
            f"next: arl eval --run {result.run} --eval.temperature=0",
        ]
    )


def _eval(args: argparse.Namespace) -> int:
    checkpoint = args.checkpoint.resolve() if args.checkpoint else None
    if checkpoint and not args.run:
        args.run = checkpoint.parents[1]
    if args.run:
        run_dir = Path(args.run)
        if args.config or not (run_dir / "config.toml").exists():
            raise ConfigError(
                f"--run {args.run}: no config.toml there, or --config given as well; "
                "--run takes the configuration and the exported model of that run"
            )
        args.config = run_dir / "config.toml"
        args.model = args.model or (None if checkpoint else str(run_dir / "export"))
    config = _config(args)
    from .inspect.progress import make_progress
    from .run import evaluate_model

    log.setup(config.logging.level)
    progress = make_progress(config.logging.progress, total_steps=0)
    try:
        result = _run_loop(lambda: evaluate_model(config, progress, checkpoint=checkpoint))
    finally:
        progress.close()
    if args.json:
        _print_json(result)
    else:
        print(
            f"reward {result['reward']:.3f} over {result['num_tasks']} tasks "
            f"({result['turns']:.2f} turns, {result['tool_calls']:.2f} tool calls an episode; "
            f"outcomes {result['outcomes']}; {result['duration_s']:.0f} s)"
        )
    return 0


def _list(args: argparse.Namespace) -> int:
    from .registry import listing

    rows = [*listing("env"), *listing("agent")]
    if args.json:
        _print_json(
            {
                "rows": [
                    {
                        "kind": row.kind,
                        "id": row.id,
                        "description": row.spec.description if row.spec else "",
                        "error": row.error,
                    }
                    for row in rows
                ]
            }
        )
        return 0
    for row in rows:
        broken = row.error.strip().splitlines()[-1:] or [""]
        text = row.spec.description if row.spec else f"BROKEN: {broken[0]}"
        print(f"{row.kind:<6} {row.id:<18} {text}")
    return 0


def _engine(args: argparse.Namespace) -> int:
    config = _config(args)
    if args.backend and args.backend != config.engine.type:
        raise ConfigError(f"unknown --backend {args.backend!r}; allowed: embedded")
    log.setup(config.logging.level)
    from .engines.embedded.main import serve
    from .model import resolve_model

    serve(
        model_dir=resolve_model(config.model.path, revision=config.model.revision),
        config=config.engine,
        host=args.host,
        port=args.port,
        seed=config.seed,
        weight_version=args.weight_version,
        journal=args.journal,
        served_model_name=config.model.path,
    )
    return 0


def _trainer(args: argparse.Namespace) -> int:
    config = _config(args)
    log.setup(config.logging.level)
    from .model import resolve_model
    from .trainer.main import run

    run(
        config,
        model_dir=resolve_model(config.model.path, revision=config.model.revision),
        run_dir=Path(args.run),
        weights_dir=args.weights,
        controller_url=args.controller,
        engine_urls=args.engines.split(","),
        rank=args.rank,
        world_size=config.trainer.num_ranks,
        rendezvous=args.rendezvous,
    )
    return 0


def _bench(args: argparse.Namespace) -> int:
    result = _benchmark(args.name).run()
    if args.json:
        _print_json(result)
    else:
        print(json.dumps(result, indent=2))
    return 0


def _benchmark(name: str) -> Any:
    """The module benchmarks/<name>.py of the source checkout (benchmarks are not installed)."""
    import importlib.util

    folder = Path(__file__).parents[1] / "benchmarks"
    file = folder / f"{name}.py"
    if not file.exists():
        known = ", ".join(sorted(f.stem for f in folder.glob("[a-z]*.py"))) or "none here"
        raise ConfigError(
            f"no benchmark {name!r} (known: {known}); they come with the source checkout"
        )
    spec = importlib.util.spec_from_file_location(f"benchmarks.{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- arguments
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "arl", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"arl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    train = _command(commands, "train", _train, "train an agent; everything on this machine")
    train.add_argument("--run", metavar="DIR", help="run folder (default: runs/<name>)")
    train.add_argument("--steps", type=int, metavar="N", help="training batches")
    evaluate = _command(commands, "eval", _eval, "held-out reward of a model or a finished run")
    evaluate.add_argument("--run", metavar="DIR", help="evaluate this run's exported model")
    evaluate.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="evaluate RUN/checkpoints/step-N instead"
    )
    for command in (train, evaluate):
        command.add_argument("--env", metavar="ID", help="environment: an id or module:Class")
        command.add_argument("--agent", metavar="ID", help="agent: an id or module:Class")
    _command(commands, "list", _list, "environments and agents, plugins included", config=False)
    engine = _command(commands, "engine", _engine, "serve a policy over the engine protocol")
    engine.add_argument("--backend", metavar="NAME", help="embedded")
    engine.add_argument("--host", default="127.0.0.1")
    engine.add_argument("--port", type=int, default=8000)
    engine.add_argument("--weight-version", default="0.0", metavar="LABEL")
    engine.add_argument("--journal", type=Path, metavar="FILE", help="log every request, as JSONL")
    trainer = _command(commands, "trainer", _trainer, "one trainer rank (started by `arl train`)")
    trainer.add_argument("--run", required=True, metavar="DIR")
    trainer.add_argument("--weights", type=Path, required=True, metavar="DIR")
    trainer.add_argument("--controller", required=True, metavar="URL")
    trainer.add_argument("--engines", required=True, metavar="URL,URL")
    trainer.add_argument("--rank", type=int, default=0)
    trainer.add_argument("--rendezvous", required=True, metavar="tcp://HOST:PORT")
    bench = _command(commands, "bench", _bench, "measure this machine", config=False)
    bench.add_argument("name", help="a file of benchmarks/: engine")
    return parser


def _command(
    commands: Any,
    name: str,
    function: Callable[[argparse.Namespace], int],
    help: str,
    *,
    config: bool = True,
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=help, epilog=_KEYS if config else ""
    )
    command.set_defaults(function=function, takes_config=config)
    command.add_argument("--json", action="store_true", help="one JSON object on stdout")
    if config:
        command.add_argument("--config", type=Path, metavar="FILE", help="TOML configuration")
        command.add_argument("--model", metavar="MODEL", help="bundled, a folder, or a hub id")
        command.add_argument("--seed", type=int, metavar="N")
        if name in ("train", "eval"):
            command.add_argument("--engine", metavar="TYPE", help="embedded")
    return command


def _dotted(rest: Sequence[str], *, allowed: bool) -> dict[str, str]:
    """`--a.b=c` and `--a.b c` as {"a.b": "c"}."""
    found: dict[str, str] = {}
    words = iter(rest)
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if not (allowed and word.startswith("--") and "." in key):
            raise ConfigError(f"unknown argument {word!r}; `arl COMMAND --help` shows the known")
        if not equals:
            following = next(words, None)
            if following is None:
                raise ConfigError(f"--{key} has no value; write --{key}=value")
            value = following
        found[key] = value
    return found


def _config(args: argparse.Namespace) -> Config:
    overrides: dict[str, Any] = dict(args.overrides)
    for name, key in _SHORT_FORMS.items():
        if getattr(args, name, None) is not None:
            overrides[key] = _quoted(getattr(args, name))
    if args.command == "train" and args.run:
        overrides["run"] = _quoted(args.run)
    return load_config(args.config, overrides)


def _quoted(value: Any) -> Any:
    """A short form's text as a TOML string, so that `--run 7` stays text."""
    return json.dumps(value) if isinstance(value, str) else value


def _run_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on uvloop; SIGINT and SIGTERM cancel it, so that everything is closed."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        return runner.run(main())


def _as_dict(result: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(result)


def _print_json(value: Any) -> None:
    print(json.dumps(value))


if __name__ == "__main__":
    main()
