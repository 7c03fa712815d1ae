"""`arl check`: the check as it goes, for people."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import time
from argparse import Namespace

from agentgym_rl import log
from agentgym_rl.config import Config
from agentgym_rl.errors import ConfigError

from .baselines import OnProgress
from .criteria import CRITERIA
from .report import Report, Result, result_lines, summary_line, tally_line
from .run import check_env, env_spec

_SAY_EVERY_S = 2.0


def check(config: Config, args: Namespace) -> Report:
    """Check the configured environment; results go to stdout as they come, unless as JSON.

    Raises:
        ConfigError: no such environment or criterion, or a number that makes no sense.
    """
    if args.episodes < 1 or args.tasks < 0:
        raise ConfigError(
            f"--episodes {args.episodes}, --tasks {args.tasks}: expected 1, 0 or more"
        )
    log.setup(config.logging.level)
    shown = not args.json
    report = asyncio.run(
        check_env(
            env_spec(config.env.id, **config.env.options),
            episodes=args.episodes,
            tasks=args.tasks,
            only=[each for each in (args.only or "").split(",") if each],
            sandbox=config.sandbox.id,
            sandbox_options=config.sandbox.options,
            on_result=_show if shown else lambda result: None,
            on_progress=_counting(),
        )
    )
    if shown:
        for tally in report.tallies:
            print(tally_line(tally))
        print(f"\n{summary_line(report)}")
    return report


def criteria_text() -> str:
    """The criteria, a line each (or two)."""
    width = max(len(each.id) for each in CRITERIA)
    return "\n".join(
        textwrap.fill(f"{each.id:<{width}}  {each.text}", 100, subsequent_indent=" " * (width + 2))
        for each in CRITERIA
    )


def _show(result: Result) -> None:
    print("\n".join(result_lines(result)), flush=True)


def _counting() -> OnProgress:
    """Says on stderr how far it is, every two seconds."""
    said = time.monotonic()

    def count(agent: str, done: int, of: int) -> None:
        nonlocal said
        if time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            print(f"{agent}: {done:,} of {of:,} tasks", file=sys.stderr, flush=True)

    return count
