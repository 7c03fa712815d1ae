"""The commands that runs start (`arl engine`, `rollout`, `trainer`, `warm-up`), and `arl bench`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_rl.cli.parse import load_configuration
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.runtime import log
from agentgym_rl.runtime.frozen import watch_starter
from agentgym_rl.runtime.memory import watch_thread_starts
from agentgym_rl.runtime.signals import run_interruptible

from .showing import print_json

if TYPE_CHECKING:
    from agentgym_rl.config.engine import OwnEngineConfig


def _watch() -> None:
    """Start the threads that watch for a hanging thread start and for a frozen parent process."""
    watch_thread_starts()
    watch_starter()


def engine(args: Namespace) -> int:
    _watch()
    config = load_configuration(args)
    log.setup(config.logging.level)
    if args.reward_model is not None:
        return _reward_model(args, config.own_engine)
    from agentgym_rl.engines.kind import Place, own_kind
    from agentgym_rl.models.fitted import fitted
    from agentgym_rl.models.resolve import model_folder

    model_dir = model_folder(config.model, config.env.id)
    config = fitted(config, model_dir)
    place = Place(
        host=args.host,
        port=args.port,
        index=args.index,
        model_dir=model_dir,
        label=args.weight_version,
        run_dir=args.config.parent if isinstance(args.config, Path) else None,
        journal=args.journal,
    )
    own_kind(config.engine.type).serve(config, place)
    return 0


def _reward_model(args: Namespace, engine: OwnEngineConfig) -> int:
    from agentgym_rl.engines.kind import own_kind

    if args.journal is not None:
        raise ConfigError("--journal logs what a policy samples: not with --reward-model")
    kind = own_kind(engine.type)
    kind.serve_reward_model(args.reward_model, engine, host=args.host, port=args.port)
    return 0


def rollout(args: Namespace) -> int:
    _watch()
    token = _token("rollout")
    config = load_configuration(args)
    log.setup(config.logging.level)
    if args.folder and args.folder.is_dir():  # another machine may not have this folder
        os.chdir(args.folder)
        sys.path.insert(0, str(args.folder))
    from agentgym_rl.workers.process import work

    run_interruptible(
        lambda: work(config, controller_url=args.controller, token=token, index=args.index),
        hang_s=config.rollout.patience_s,
    )
    return 0


def _token(command: str) -> str:
    """Return the token with which this process authenticates to the controller."""
    if not (token := os.environ.get("ARL_TOKEN", "")):
        raise ConfigError(
            f"ARL_TOKEN is not set: `arl {command}` is started by `arl train`, which gives it the "
            "controller's token there"
        )
    return token


def trainer(args: Namespace) -> int:
    _watch()
    _token("trainer")
    config = load_configuration(args)
    log.setup(config.logging.level)
    from agentgym_rl.models.resolve import model_folder
    from agentgym_rl.trainer.main import run

    run(
        config,
        model_dir=model_folder(config.model, config.env.id),
        run_dir=Path(args.run),
        weights_dir=args.weights,
        controller_url=args.controller,
        rank=args.rank,
        world_size=config.trainer.num_ranks,
        rendezvous=args.rendezvous,
        incarnation=args.incarnation,
        resume=args.resume,
        served=args.served,
    )
    return 0


def warm_up(args: Namespace) -> int:
    _watch()
    config = load_configuration(args)
    log.setup(config.logging.level)
    from agentgym_rl.models.resolve import model_folder
    from agentgym_rl.run.warmup import MODEL, ROWS, STEPS
    from agentgym_rl.trainer.warmup import warm_up

    warm_up(
        config,
        model_dir=model_folder(config.model, config.env.id),
        rows=args.run / ROWS,
        out=args.run / MODEL,
        steps=args.run / STEPS,
        rank=args.rank,
        world_size=config.trainer.num_ranks,
        rendezvous=args.rendezvous,
    )
    return 0


def bench(args: Namespace) -> int:
    if args.dry_run:  # before the import, which reads it
        os.environ["ARL_BENCH_TOY"] = "1"
    benchmark = _benchmark(args.name)
    given = {name: getattr(args, name) for name in ("model", "out")}
    given = {name: value for name, value in given.items() if value}
    if unknown := given.keys() - inspect.signature(benchmark.run).parameters.keys():
        raise ConfigError(f"the benchmark {args.name} takes no --{min(unknown)}; leave it out")
    result = benchmark.run(**given)
    if args.json:
        print_json(result)
    else:
        print(json.dumps(result, indent=2))
    return 0


def _benchmark(name: str) -> Any:
    """Import benchmarks/<name>.py of the source checkout (benchmarks are not installed)."""
    root = Path(__file__).parents[3]
    known = sorted(file.stem for file in (root / "benchmarks").glob("[a-z]*.py"))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"no benchmark {name!r}; {hint}known: {', '.join(known) or 'none'} (benchmarks come "
            "with the source checkout)"
        )
    sys.path.insert(0, str(root))
    return importlib.import_module(f"benchmarks.{name}")
