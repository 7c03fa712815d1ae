"""The command `arl timeline`: the events of a run as a trace."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from agentgym_rl.cli import Command, json_flag, print_result, run_argument
from agentgym_rl.cli.output import counting
from agentgym_rl.runtime import log

_HELP = """\
Write a trace of the events of a run, running or ended, for
https://ui.perfetto.dev and chrome://tracing.

  arl timeline runs/NAME

The trace has the phases of the trainer, and every training episode with its
turns (first to last token, policy versions). It shows the waits between
processes, and the turns during which an update happened. Times are the
machine's monotonic clock, the same for all processes.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    run_argument(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="a new file; default: RUN/timeline.json"
    )


def timeline(args: Namespace) -> int:
    log.setup()
    from arl_inspect.timeline import write_timeline

    out = args.out or args.run / "timeline.json"
    report = write_timeline(args.run, out, on_progress=counting("read", "episodes"))
    text = (
        f"{report['steps']:,} steps and {report['episodes']:,} episodes: {report['out']}\n"
        "open it in https://ui.perfetto.dev (it stays in your browser) or chrome://tracing"
    )
    print_result(report, text, as_json=args.json)
    return 0


COMMAND = Command(
    summary="write the events of a run as a trace",
    description=_HELP,
    flags=_flags,
    run=timeline,
    group="look at runs",
    order=90,
)
