"""The command `arl check`: results are printed as the check proceeds."""

from __future__ import annotations

import textwrap
from argparse import Namespace

from agentgym_rl.config import Config
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.gym.check.criteria import CRITERIA
from agentgym_rl.gym.check.report import Report, Result, result_lines, summary_line, tally_line
from agentgym_rl.gym.check.run import check_env
from agentgym_rl.rollout.player import env_spec
from agentgym_rl.runtime import log
from agentgym_rl.runtime.signals import run_interruptible


def check(config: Config, args: Namespace) -> Report:
    """Check the configured environment; print results to stdout as they come, unless `args.json`.

    Raises:
        ConfigError: no such environment or criterion, or a number that makes no sense.
    """
    if args.episodes < 1 or args.tasks < 0:
        raise ConfigError(
            f"--episodes {args.episodes}, --tasks {args.tasks}: expected 1, 0 or more"
        )
    log.setup(config.logging.level)
    shown, say = not args.json, log.now_and_then()
    report = run_interruptible(
        lambda: check_env(
            env_spec(config),
            episodes=args.episodes,
            tasks=args.tasks,
            only=[each for each in (args.only or "").split(",") if each],
            sandbox=config.sandbox,
            verifier=config.verifier,
            on_result=_show if shown else lambda result: None,
            on_progress=lambda done, of: say(f"played {done:,} of {of:,} tasks"),
        )
    )
    if shown:
        for tally in report.tallies:
            print(tally_line(tally))
        print(f"\n{summary_line(report)}")
    return report


def criteria_text() -> str:
    """Return the list of criteria as text, one or two lines each."""
    width = max(len(each.id) for each in CRITERIA)
    return "\n".join(
        textwrap.fill(f"{each.id:<{width}}  {each.text}", 80, subsequent_indent=" " * (width + 2))
        for each in CRITERIA
    )


def _show(result: Result) -> None:
    print("\n".join(result_lines(result)), flush=True)
