"""The command `arl workers`: list, add and remove the rollout workers of a running run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agentgym_rl.cli import Command, json_flag, run_argument

from .members import change_members

_HELP = """\
Show the rollout workers of a running run, and add or remove workers.

  arl workers runs/NAME                     the workers, with their groups
  arl workers runs/NAME --add               add one; --add 2: two
  arl workers runs/NAME --remove rollout-0  it finishes its groups, then ends

The command is for runs that began with workers (`rollout.workers`). Each plays
an equal share of the groups. A worker that is removed has
rollout.episode_timeout_s (unset: rollout.idle_timeout_s) to finish its groups;
others play the rest. The last worker cannot be removed. `arl train --resume`
starts the configured number again. The command contacts the run at the address
in control.json in its folder, which only the owner of the run can read.

Exit code: 0 done, 1 impossible now or a worker failed to join, 2 wrong use.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    run_argument(parser)
    parser.add_argument("--add", nargs="?", const=1, type=int, metavar="N", help="add N more (1)")
    parser.add_argument("--remove", metavar="WORKER", help="remove one, by name")


def workers(args: Namespace) -> int:
    """List the rollout workers of a run, add some, or remove one."""
    columns = ("name", "state", "groups", "restarts")
    wanted = {} if args.add is None else {"count": args.add}
    return change_members(args, "worker", columns, add=wanted)


COMMAND = Command(
    summary="list, add and remove rollout workers of a running run",
    description=_HELP,
    flags=_flags,
    run=workers,
    group="serve and scale",
    order=180,
)
