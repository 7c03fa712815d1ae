"""The command `arl runs`: list, compare and delete runs."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym_rl.cli import Command, json_flag, print_result
from agentgym_rl.core import ConfigError

from . import runs_argument

_HELP = """\
List runs, the newest first, with their state, progress and size on disk.

  arl runs                                  the runs in the folder `runs`
  arl runs elsewhere runs/NAME              in other folders, or single runs
  arl runs --compare runs/NAME runs/OTHER   results, and keys that differ
  arl runs --delete runs/NAME               asks first, unless --yes is given

STATE is running, finished (all batches are trained), stopped (`arl train
--resume RUN` continues it), or failed: then its error is below the table, and
--resume continues it as well. BATCHES names the folders of `arl eval --out`
and of `arl serve`. REWARD is the mean of training episodes in the last 5
batches, HELD-OUT the rewards of the evaluations before and after, with their
numbers of tasks if these differ. Tags (see `arl inspect`) are listed below the
table. --compare keeps the given order, shows 95 % intervals, and says if the
held-out rewards are unlike measures; for runs that differ only in their seed,
it adds the mean and standard deviation. Running runs are not deleted. --json
prints one object, with the complete configuration, notes and tags of each run.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    runs_argument(parser)
    parser.add_argument("--compare", action="store_true", help="compare the given runs")
    parser.add_argument("--delete", action="store_true", help="remove their folders; asks first")
    parser.add_argument("--yes", action="store_true", help="with --delete: do not ask")


def runs(args: Namespace) -> int:
    """List runs, compare some, or delete some."""
    from agentgym_rl.storage import find_runs
    from arl_inspect.run_list import (
        comparison_lines,
        differing,
        noted,
        only_seeds_differ,
        runs_lines,
        spread_of,
        tag_lines,
    )

    if args.compare and args.delete:
        raise ConfigError("--compare and --delete: give one of them")
    if args.delete:
        return _delete(args)
    if not args.runs and not Path("runs").is_dir():
        if args.compare:
            raise ConfigError("--compare: which runs? arl runs --compare RUN RUN")
        none = "no folder `runs` here: `arl train --env math --agent react` makes the first run"
        print_result({"runs": []}, none, as_json=args.json)
        return 0
    found = find_runs(args.runs or [Path("runs")], as_named=args.compare)
    different: dict[str, Any] = {}
    if args.compare:
        if not 2 <= len(found) <= 26:
            raise ConfigError(
                f"--compare: {len(found)} runs there; between 2 and 26 can be compared"
            )
        different = differing(found)
    lines = comparison_lines(found, different) if args.compare else runs_lines(found)
    lines = [*lines, *tag_lines(found)]
    result = {"runs": [asdict(run) | noted(run) for run in found], "different": different}
    if different and only_seeds_differ(different):
        result["spread"] = spread_of(found)
    print_result(result, "\n".join(lines), as_json=args.json)
    return 0


def _delete(args: Namespace) -> int:
    from agentgym_rl.storage.run_folder import shown
    from agentgym_rl.storage.run_list import summary
    from arl_inspect.run_list import delete, size_text

    if not args.runs:
        raise ConfigError("--delete: which runs? arl runs --delete RUN …")
    found = [summary(config.parent) for config in _configs(args.runs)]
    if living := [run.run for run in found if run.state in ("running", "frozen")]:
        raise ConfigError(f"{', '.join(living)} is running: end it first; nothing was deleted")
    size = size_text(sum(run.size_bytes for run in found))
    if not args.yes:
        if not sys.stdin.isatty():
            raise ConfigError("--delete needs a terminal to ask, or --yes")
        names = ", ".join(run.run for run in found)
        if input(f"delete {names} ({size})? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing is deleted")
            return 1
    deleted = {shown(folder): delete(folder) for folder in args.runs}
    print_result({"deleted": deleted}, f"deleted {', '.join(deleted)} ({size})", as_json=args.json)
    return 0


def _configs(folders: list[Path]) -> list[Path]:
    from agentgym_rl.storage import config_of

    return [config_of(folder, "--delete") for folder in folders]


COMMAND = Command(
    summary="list, compare and delete runs",
    description=_HELP,
    flags=_flags,
    run=runs,
    group="look at runs",
    order=32,
)
