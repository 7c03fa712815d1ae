"""The command `arl inspect`: the page, served live or written into one file."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from agentgym_rl.cli import Command, json_flag, print_result
from agentgym_rl.cli.output import counting
from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import log

from . import runs_argument

_HELP = """\
Show runs in a browser, during training and afterwards: curves, waits between
processes, episodes to filter and sort, and each token with its policy version,
log-probs and advantage (arl docs inspect).

  arl inspect                            all runs in the folder `runs`
  arl inspect runs/NAME runs/OTHER       these runs
  arl inspect runs/NAME --html run.html  one file, which works without a server

Runs are only read, except that notes and tags can be edited on the page;
--read-only switches this off. The page sends requests only to this machine, and
can be opened only on it. With another --host it can be opened elsewhere, with
the token that is part of the printed URL. The newest of 100,000 episodes are
shown at once, the others some seconds later. Ctrl-C ends the command.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    runs_argument(parser)
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")
    parser.add_argument("--read-only", action="store_true", help="do not write notes and tags")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one file, then end")
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="with --html: episodes per run (200)"
    )


def inspect(args: Namespace) -> int:
    """Serve the inspector page until interrupted, or write it into a file."""
    log.setup()
    if args.episodes is not None and not args.html:
        raise ConfigError("--episodes is the number of episodes in the file of --html: give both")
    if args.episodes is not None and args.episodes < 0:
        raise ConfigError(f"--episodes={args.episodes}: allowed are 0 and more")
    if args.html and (args.open or args.port or args.read_only or args.host != "127.0.0.1"):
        raise ConfigError(
            "--html writes a file, without a server: leave out --host, --port, --open and "
            "--read-only"
        )
    if not args.runs and not Path("runs").is_dir():
        raise ConfigError(
            "no folder `runs` here: pass runs (arl inspect RUN), or make one: "
            "arl train --env math --agent react"
        )
    places = args.runs or [Path("runs")]
    return _write(args, places) if args.html else _serve(args, places)


def _write(args: Namespace, places: list[Path]) -> int:
    from arl_inspect.export import write_page

    episodes = 200 if args.episodes is None else args.episodes
    report = write_page(
        places, args.html, episodes=episodes, on_progress=counting("written", "episodes")
    )
    left_out = f"; {report['left_out']:,} only as lines of the table" if report["left_out"] else ""
    text = (
        f"{report['out']}: {_runs(report['runs'])}, {report['episodes']:,} episodes{left_out} "
        f"({report['size_bytes'] / 1e6:.1f} MB)"
    )
    print_result(report, text, as_json=args.json)
    return 0


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _serve(args: Namespace, places: list[Path]) -> int:
    from agentgym_rl.runtime import run_interruptible
    from arl_inspect.serve import inspect_live

    def ready(url: str, num_runs: int) -> None:
        print_result({"url": url, "runs": num_runs}, url, as_json=args.json)
        sys.stdout.flush()
        where = ", ".join(str(place.resolve()) for place in places)
        none = f" in {where} yet: those that begin there appear on the page" * (not num_runs)
        print(f"{_runs(num_runs)}{none}; Ctrl-C ends this", file=sys.stderr, flush=True)
        if args.open:
            import webbrowser

            if not webbrowser.open(url):
                print("no browser to open here: open the URL yourself", file=sys.stderr)

    run_interruptible(
        lambda: inspect_live(
            places,
            host=args.host,
            port=args.port,
            read_only=args.read_only,
            on_ready=ready,
        )
    )
    return 0


COMMAND = Command(
    summary="show runs in a browser, during training and afterwards",
    description=_HELP,
    flags=_flags,
    run=inspect,
    group="look at runs",
    order=34,
)
