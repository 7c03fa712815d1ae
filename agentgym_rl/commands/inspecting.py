"""`arl inspect`: the page, live or in one file."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from agentgym_rl import log
from agentgym_rl.errors import ConfigError
from agentgym_rl.interrupts import run_interruptible

from .showing import counting, print_json


def inspect(args: Namespace) -> int:
    """Serve the page until interrupted, or write it."""
    log.setup()
    if args.episodes is not None and not args.html:
        raise ConfigError("--episodes says how many go into a file: it goes with --html")
    if args.episodes is not None and args.episodes < 0:
        raise ConfigError(f"--episodes={args.episodes}: allowed are 0 and more")
    if args.html and (args.open or args.port or args.host != "127.0.0.1"):
        raise ConfigError("--html writes a file and ends: --host, --port and --open go without it")
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
        places, args.html, episodes=episodes, on_progress=counting("wrote", "episodes")
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
