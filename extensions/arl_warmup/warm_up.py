"""The command `arl warm-up`: one rank of a warm-up, which a run starts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from agentgym_rl.cli import Command, begin_process_of_run, config_flags, load_configuration
from agentgym_rl.runtime import log


def _flags(parser: ArgumentParser) -> None:
    config_flags(parser)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="a checkpoint of the warm-up")
    parser.add_argument("--rendezvous", required=True, metavar="tcp://HOST:PORT", help="of ranks")


def warm_up(args: Namespace) -> int:
    begin_process_of_run()
    config = load_configuration(args)
    log.setup(config.logging.level)
    from agentgym_rl.models import model_folder
    from arl_warmup.keys import FOLDER
    from arl_warmup.trainer import warm_up

    warm_up(
        config,
        model_dir=model_folder(config.model, config.env.id),
        folder=args.run / FOLDER,
        resume=args.resume,
        rank=args.rank,
        world_size=config.trainer.num_ranks,
        rendezvous=args.rendezvous,
    )
    return 0


COMMAND = Command(
    summary="run one rank of a warm-up (started by `arl train --init sft`)",
    flags=_flags,
    run=warm_up,
    order=220,
)
