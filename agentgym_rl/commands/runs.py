"""`arl runs`: those that are here."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym_rl.errors import ConfigError

from .showing import print_json


def runs(args: Namespace) -> int:
    """List runs, compare some, or delete some."""
    from agentgym_rl.inspect.runs_text import comparison_lines, runs_lines
    from agentgym_rl.run_list import differing, find_runs

    if args.compare and args.delete:
        raise ConfigError("--compare and --delete: one at a time")
    if args.delete:
        return _delete(args)
    if not args.runs and not Path("runs").is_dir():
        if args.compare:
            raise ConfigError("--compare: which runs? arl runs --compare RUN RUN")
        print_json({"runs": []}) if args.json else print(
            "no folder `runs` here: `arl train --env math --agent react` makes the first run"
        )
        return 0
    found = find_runs(args.runs or [Path("runs")], as_named=args.compare)
    different: dict[str, Any] = {}
    if args.compare:
        if not 2 <= len(found) <= 26:
            raise ConfigError(
                f"--compare: {len(found)} runs there; between 2 and 26 can be compared"
            )
        different = differing(found)
    if args.json:
        print_json({"runs": [asdict(run) for run in found], "different": different})
        return 0
    lines = comparison_lines(found, different) if args.compare else runs_lines(found)
    print("\n".join(lines))
    return 0


def _delete(args: Namespace) -> int:
    from agentgym_rl.inspect.runs_text import size_text
    from agentgym_rl.run_dir import shown
    from agentgym_rl.run_list import delete, summary

    if not args.runs:
        raise ConfigError("--delete: which runs? arl runs --delete RUN …")
    found = [summary(config.parent) for config in _configs(args.runs)]
    if living := [run.run for run in found if run.state in ("running", "frozen")]:
        raise ConfigError(f"{', '.join(living)} lives: end it first; nothing is deleted")
    size = size_text(sum(run.size_bytes for run in found))
    if not args.yes:
        if not sys.stdin.isatty():
            raise ConfigError("--delete without a terminal to ask at: say --yes")
        names = ", ".join(run.run for run in found)
        if input(f"delete {names} ({size})? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing is deleted")
            return 1
    deleted = {shown(folder): delete(folder) for folder in args.runs}
    if args.json:
        print_json({"deleted": deleted})
    else:
        print(f"deleted {', '.join(deleted)} ({size})")
    return 0


def _configs(folders: list[Path]) -> list[Path]:
    from agentgym_rl.run_dir import config_of

    return [config_of(folder, "--delete") for folder in folders]
