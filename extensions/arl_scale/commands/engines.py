"""The command `arl engines`: list, add and remove the engines of a running run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from agentgym_rl.cli import Command, json_flag, run_argument

from .members import change_members

_HELP = """\
Show the engines of a running run, and add or remove engines while it trains.

  arl engines runs/NAME                     the engines, with their versions
  arl engines runs/NAME --add               add one; --add 2: two
  arl engines runs/NAME --add http://HOST:8000
                                            add a running server, if
                                            engine.urls names the others
  arl engines runs/NAME --remove engine-0   its requests continue on others,
                                            then it ends

A new engine passes the checks of the start and gets the current version before
it serves. The last serving engine cannot be removed. `arl train --resume`
starts the configured number again. The command contacts the run at the address
in control.json in its folder, which only the owner of the run can read.

Exit code: 0 done, 1 impossible now or an engine failed to join, 2 wrong use.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    run_argument(parser)
    parser.add_argument(
        "--add", nargs="?", const="1", metavar="N|URL", help="add N engines (1), or the one at URL"
    )
    parser.add_argument("--remove", metavar="ENGINE", help="remove one, by name or URL")


def engines(args: Namespace) -> int:
    """List the engines of a run, add some, or remove one."""
    wanted: dict[str, Any] = {}
    if args.add is not None:
        wanted = {"count": int(args.add)} if args.add.isdecimal() else {"url": args.add}
    columns = ("name", "url", "state", "version", "requests", "restarts")
    return change_members(args, "engine", columns, add=wanted)


COMMAND = Command(
    summary="list, add and remove engines of a running run",
    description=_HELP,
    flags=_flags,
    run=engines,
    group="serve and scale",
    order=170,
)
