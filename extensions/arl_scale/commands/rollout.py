"""The command `arl rollout`: one rollout worker, which a run starts."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from agentgym_rl.cli import (
    Command,
    begin_process_of_run,
    config_flags,
    controller_token,
    load_configuration,
)
from agentgym_rl.runtime import log


def _flags(parser: ArgumentParser) -> None:
    config_flags(parser)
    parser.add_argument("--controller", required=True, metavar="URL", help="source of groups")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="index of this worker")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="working folder")


def rollout(args: Namespace) -> int:
    from agentgym_rl.runtime import run_interruptible

    begin_process_of_run()
    token = controller_token("rollout")
    config = load_configuration(args)
    log.setup(config.logging.level)
    if args.folder and args.folder.is_dir():  # another machine may not have this folder
        os.chdir(args.folder)
        sys.path.insert(0, str(args.folder))
    from arl_scale.workers.process import work

    run_interruptible(
        lambda: work(config, controller_url=args.controller, token=token, index=args.index),
        hang_s=config.rollout.patience_s,
    )
    return 0


COMMAND = Command(
    summary="run one rollout worker (started by `arl train`)",
    flags=_flags,
    run=rollout,
    group="",  # a run starts it
    order=200,
)
