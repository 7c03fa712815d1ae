"""The command `arl reverify`: recorded rewards, verified with the current environment."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from agentgym_rl.cli import Command, json_flag, print_result, run_argument, take_keys
from agentgym_rl.cli.output import counting
from agentgym_rl.runtime import log

_HELP = """\
Verify that the current environment gives the recorded rewards.

The command plays every recorded episode of a run again: the same task and the
same actions, in a new environment made from the run's configuration. It sends
no requests to a model, and only reads the run. It lists rewards that differ,
with the current verdict of the verifier, tool outputs that differ, and episodes
that end at another step. An episode that cannot be played again, for example
because a sandbox fails, counts neither as changed nor as unchanged.

  arl reverify runs/NAME --write new.jsonl  the old and new rewards, a line each
  arl reverify runs/NAME --env.options.max_turns=2
                                            in another environment

Exit code: 0 nothing changed, 1 some rewards changed, 2 nothing to verify.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    take_keys(parser)  # uses the run's configuration; keys override it
    run_argument(parser)
    parser.add_argument("--write", type=Path, metavar="FILE", help="old and new rewards, as JSONL")


def reverify(args: Namespace) -> int:
    from agentgym_rl.runtime import run_interruptible

    log.setup()
    from arl_audit.recorded import reverify_text
    from arl_audit.reverify import reverify

    reading = counting("played again", "episodes")
    report = run_interruptible(
        lambda: reverify(args.run, args.overrides, write=args.write, on_progress=reading)
    )
    print_result(report, reverify_text(report), as_json=args.json)
    return 1 if report["changed"] else 0


COMMAND = Command(
    summary="verify recorded rewards with the current environment",
    description=_HELP,
    flags=_flags,
    run=reverify,
    group="look at runs",
    order=80,
)
