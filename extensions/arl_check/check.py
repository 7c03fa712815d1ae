"""The command `arl check`: the criteria of an environment."""

from __future__ import annotations

import gc
import logging
import textwrap
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentgym_rl.cli import (
    Command,
    config_flag,
    data_flag,
    json_flag,
    key_flag,
    load_configuration,
    print_json,
    sandbox_flag,
)
from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import log

if TYPE_CHECKING:
    from arl_check.report import Result

logger = logging.getLogger(__name__)

_HELP = """\
Test whether an environment keeps the contract, criterion by criterion.

  arl check math                       a registered id, or name:value
  arl check mine:MyEnv                 a class of the current folder
  arl check math --env.options.level=3 --tasks=10000
  arl check --list                     the criteria, a line each

Scripted agents play a few tasks: one sends the messages of solve(), one sends
empty messages, one repeats the question, one calls every tool with junk, others
give bad answers and broken messages. Each failed criterion is reported with the
result and the remedy; a criterion that depends on a failed one is not tested.
With --tasks=N they play N tasks each: solve() must get the full reward, the
others no reward.

A sandbox is started if the environment needs one. Exit code: 0 it passes,
1 it does not, 2 there is no such environment or criterion.
"""


def _flags(parser: ArgumentParser) -> None:
    json_flag(parser)
    config_flag(parser)
    text = "an id, name:value or module:Class"
    key_flag(parser, "env", "env.id", nargs="?", metavar="ENV", help=text)
    parser.add_argument("--list", action="store_true", help="show the criteria, then end")
    parser.add_argument("--only", metavar="ID,ID", help="only these and their preconditions")
    parser.add_argument("--episodes", type=int, default=8, metavar="N", help="tasks to play (8)")
    parser.add_argument("--tasks", type=int, default=0, metavar="N", help="play N tasks per agent")
    data_flag(parser)
    sandbox_flag(parser)


def check(args: Namespace) -> int:
    """Check the configured environment; print results as they come, unless `args.json`.

    Raises:
        ConfigError: no such environment or criterion, or a number out of range.
    """
    from agentgym_rl.rollout import env_spec
    from agentgym_rl.runtime import run_interruptible
    from arl_check.report import summary_line, tally_line
    from arl_check.run import check_env

    if args.list:
        _list_criteria(as_json=args.json)
        return 0
    if not args.env:
        raise ConfigError("arl check ENV: which environment? `arl list` shows those there are")
    config = load_configuration(args)
    if args.episodes < 1 or args.tasks < 0:
        raise ConfigError(
            f"--episodes {args.episodes}, --tasks {args.tasks}: expected 1, 0 or more"
        )
    log.setup(config.logging.level)
    log_progress = log.now_and_then()
    with _coroutines_named():
        report = run_interruptible(
            lambda: check_env(
                env_spec(config.env, config.rollout),
                episodes=args.episodes,
                tasks=args.tasks,
                only=[each for each in (args.only or "").split(",") if each],
                sandbox=config.sandbox,
                verifier=config.verifier_options,
                on_result=(lambda result: None) if args.json else _show,
                on_progress=lambda done, of: log_progress(f"played {done:,} of {of:,} tasks"),
            )
        )
    if args.json:
        print_json(report.to_json())
    else:
        for tally in report.tallies:
            print(tally_line(tally))
        print(f"\n{summary_line(report)}")
    return 0 if report.passed else 1


@contextmanager
def _coroutines_named() -> Generator[None]:
    """Report a coroutine that is never awaited once, in a context. Python's own warning names the
    line at which it happens to be deleted, again and again."""
    told, before = set[str](), warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        text = str(message)
        if "was never awaited" not in text:
            before(message, category, *where, **more)
        elif text not in told:
            told.add(text)
            logger.warning("%s: write `await` before its call", text)

    warnings.showwarning = show
    try:
        yield
        gc.collect()
    finally:
        warnings.showwarning = before


def _list_criteria(*, as_json: bool) -> None:
    """Print the criteria, one or two lines each."""
    from arl_check.criteria import CRITERIA

    if as_json:
        print_json({"rows": [{"id": each.id, "text": each.text} for each in CRITERIA]})
        return
    width = max(len(each.id) for each in CRITERIA)
    for each in CRITERIA:
        row = f"{each.id:<{width}}  {each.text}"
        print(textwrap.fill(row, 80, subsequent_indent=" " * (width + 2)))


def _show(result: Result) -> None:
    from arl_check.report import result_lines

    print("\n".join(result_lines(result)), flush=True)


COMMAND = Command(
    summary="test whether an environment keeps the contract",
    description=_HELP,
    flags=_flags,
    run=check,
    group="environments and agents",
    order=140,
)
