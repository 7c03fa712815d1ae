"""The commands `arl inspect` (the inspector page, served live or written into one file) and `arl
runs` (list, compare and delete runs)."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.runtime import log
from agentgym_rl.runtime.signals import run_interruptible

from .showing import counting, print_json


def inspect(args: Namespace) -> int:
    """Serve the inspector page until interrupted, or write it into a file."""
    log.setup()
    if args.episodes is not None and not args.html:
        raise ConfigError("--episodes is the number of episodes in the file of --html: give both")
    if args.episodes is not None and args.episodes < 0:
        raise ConfigError(f"--episodes={args.episodes}: allowed are 0 and more")
    if args.html and (args.open or args.port or args.host != "127.0.0.1"):
        raise ConfigError(
            "--html writes a file, without a server: leave out --host, --port and --open"
        )
    if not args.runs and not Path("runs").is_dir():
        raise ConfigError(
            "no folder `runs` here: pass runs (arl inspect RUN), or make one: "
            "arl train --env math --agent react"
        )
    places = args.runs or [Path("runs")]
    return _write(args, places) if args.html else _serve(args, places)


def _write(args: Namespace, places: list[Path]) -> int:
    from agentgym_rl.inspector import write_page

    episodes = 200 if args.episodes is None else args.episodes
    report = write_page(
        places, args.html, episodes=episodes, on_progress=counting("written", "episodes")
    )
    if args.json:
        print_json(report)
        return 0
    left_out = f"; {report['left_out']:,} only as lines of the table" if report["left_out"] else ""
    print(
        f"{report['out']}: {_runs(report['runs'])}, {report['episodes']:,} episodes{left_out} "
        f"({report['size_bytes'] / 1e6:.1f} MB)"
    )
    return 0


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _serve(args: Namespace, places: list[Path]) -> int:
    from agentgym_rl.inspector import inspect_live

    def ready(url: str, num_runs: int) -> None:
        if args.json:
            print_json({"url": url, "runs": num_runs})
        else:
            print(url)
        sys.stdout.flush()
        where = ", ".join(str(place.resolve()) for place in places)
        none = f" in {where} yet: those that begin there appear on the page" * (not num_runs)
        print(f"{_runs(num_runs)}{none}; Ctrl-C ends this", file=sys.stderr, flush=True)
        if args.open:
            import webbrowser

            if not webbrowser.open(url):
                print("no browser to open here: open the URL yourself", file=sys.stderr)

    run_interruptible(lambda: inspect_live(places, host=args.host, port=args.port, on_ready=ready))
    return 0


def runs(args: Namespace) -> int:
    """List runs, compare some, or delete some."""
    from agentgym_rl.report.run import comparison_lines, runs_lines
    from agentgym_rl.storage.run_list import differing, find_runs

    if args.compare and args.delete:
        raise ConfigError("--compare and --delete: give one of them")
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
    from agentgym_rl.report.run import size_text
    from agentgym_rl.storage.run_folder import shown
    from agentgym_rl.storage.run_list import delete, summary

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
    if args.json:
        print_json({"deleted": deleted})
    else:
        print(f"deleted {', '.join(deleted)} ({size})")
    return 0


def _configs(folders: list[Path]) -> list[Path]:
    from agentgym_rl.storage.run_folder import config_of

    return [config_of(folder, "--delete") for folder in folders]
