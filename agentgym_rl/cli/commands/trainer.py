"""The command `arl trainer`: one rank of the trainer, which a run starts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from agentgym_rl.cli.command import (
    Command,
    begin_process_of_run,
    config_flags,
    controller_token,
    load_configuration,
)
from agentgym_rl.runtime import log


def _flags(parser: ArgumentParser) -> None:
    config_flags(parser)
    parser.add_argument("--run", required=True, metavar="DIR", help="the run's folder")
    parser.add_argument(
        "--weights", type=Path, required=True, metavar="DIR", help="folder of versions"
    )
    parser.add_argument("--controller", required=True, metavar="URL", help="source of batches")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--rendezvous", required=True, metavar="tcp://HOST:PORT", help="of ranks")
    parser.add_argument("--incarnation", type=int, default=0, metavar="N", help="times resumed")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="checkpoint to resume from")
    parser.add_argument(
        "--served", type=int, metavar="N", help="version on the engines, from earlier ranks"
    )
    parser.add_argument("--splits", action="store_true", help="halve micro-batches: no memory")


def trainer(args: Namespace) -> int:
    begin_process_of_run()
    controller_token("trainer")
    config = load_configuration(args)
    log.setup(config.logging.level)
    from agentgym_rl.models import model_folder
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
        splits=args.splits,
    )
    return 0


COMMAND = Command(
    summary="run one trainer rank (started by `arl train`)",
    flags=_flags,
    run=trainer,
    group="",  # a run starts it
    order=210,
)
