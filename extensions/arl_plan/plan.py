"""The command `arl plan`: the speed of a run, predicted."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym_rl.cli import (
    Command,
    config_flags,
    engine_flag,
    json_flag,
    load_configuration,
    print_result,
    steps_flag,
)
from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import log

if TYPE_CHECKING:
    from agentgym_rl.config import Config

_HELP = """\
Predict throughput, staleness and idle time of a run, and suggest other
configurations. The rollout, buffer and controller of `arl train` run in virtual
time, around simulated engines, a trainer and episodes (arl docs plan).

  arl plan --run runs/NAME --cores 2 --rollout.max_staleness=4
                 a run like that one, with another bound; it is measured first
  arl plan --config my.toml --gpu H100 --parameters 7.6e9 --gpus 64 --plot p.png
                 a model on 64 GPUs, estimated from data sheets
  arl plan --model FOLDER
                 a model on this machine's CPU, measured for half a minute

  arl plan --memory --model Qwen/Qwen3-8B --gpu h100 --gpus 8 \\
           --allocation vllm:d2+fsdp:d6
                 what ranks, engines and hosts hold, and whether that fits

Engines, slots, ranks, batches and bounds come from the configuration (without
--config from that of --run), with further keys on the command line. All other
quantities, such as the speed of the parts and the length of episodes, are
rates. --run measures them, --gpu estimates them, and --rates reads a file like
that of --write-rates. The file overrides --gpu. Without any of them, engine and
trainer are measured here if they use a CPU, once for a model and its settings;
lengths are then guesses from the configuration.

--cores N: engines, trainer and rollout share N processors, as on one machine
without GPUs. Without this flag processors are unlimited.
--gpus N: N GPUs in total, which the search may divide between engines and
trainer. The search changes one thing at a time, and keeps what is 3 % faster.
Effects of staleness and batch size on learning are not modelled.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    config_flags(parser)
    engine_flag(parser)
    steps_flag(parser)
    parser.add_argument("--run", type=Path, metavar="RUN", help="calibrate on this finished run")
    parser.add_argument("--rates", type=Path, metavar="FILE", help="speed of each part, as TOML")
    parser.add_argument("--gpu", default="", metavar="NAME", help="estimate rates: H100, A100, ...")
    parser.add_argument(
        "--parameters", type=float, default=0.0, metavar="N", help="model size, with --gpu"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="total number (see above)")
    parser.add_argument("--cores", type=float, metavar="N", help="shared by all (see above)")
    parser.add_argument("--memory", action="store_true", help="the memory, and nothing else")
    parser.add_argument("--allocation", metavar="TEXT", help="cluster.allocation, with --memory")
    parser.add_argument("--no-search", action="store_true", help="only the run as configured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot, PNG")
    parser.add_argument(
        "--write-rates", type=Path, metavar="FILE", help="write the used rates to a new file"
    )


def plan(args: Namespace) -> int:
    for name in ("gpus", "cores", "parameters"):
        value = getattr(args, name)
        if (value is not None and value < 0) or (value == 0 and name != "parameters"):
            raise ConfigError(f"--{name} {value:g}: expected a number above 0")
    if args.run is not None and args.config is None:
        from agentgym_rl.storage import config_of

        args.config = config_of(args.run, f"--run {args.run}")
    if args.memory:
        return _memory(args)
    config = load_configuration(args)
    log.setup("warning")  # the run's own messages, of another time
    from arl_plan.command import PlanOptions, plan

    planned = plan(
        config,
        PlanOptions(
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
        warn=partial(print, file=sys.stderr, flush=True),
    )
    print_result(planned.json(), planned.text(), as_json=args.json)
    return 0


def _memory(args: Namespace) -> int:
    """Print the memory of a run; return 1 if it does not fit."""
    if not args.gpu:
        raise ConfigError("--memory counts what GPUs hold: name them, such as --gpu h100")
    log.setup("warning")
    from agentgym_rl.cli import overrides_of
    from agentgym_rl.config import load_config
    from agentgym_rl.models import model_name
    from arl_plan.memory_plan import folder_of, gpu_of, memory_plan

    gpu_of(args.gpu)  # before a model is looked up

    allocation = {"cluster.allocation": args.allocation} if args.allocation else {}
    given = {"engine.dtype": "bfloat16", "trainer.device": "cuda"} | overrides_of(args) | allocation

    def make(keys: Mapping[str, object]) -> Config:
        return load_config(args.config, {**given, **keys})

    config = make({})
    folder = folder_of(model_name(config.model, config.env.id), revision=config.model.revision)
    found = memory_plan(make, folder, gpu=args.gpu, gpus=args.gpus)
    print_result(found.json(), found.text(), as_json=args.json)
    return 0 if found.fits else 1


COMMAND = Command(
    summary="predict the speed of a run",
    description=_HELP,
    flags=_flags,
    run=plan,
    group="serve and scale",
    order=120,
)
