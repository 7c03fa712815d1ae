"""The output of commands: progress while they work, and JSON results."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from agentgym_rl.core import load_extensions
from agentgym_rl.runtime import log

if TYPE_CHECKING:
    from agentgym_rl.config import LoggingConfig
    from agentgym_rl.report import Progress


@contextmanager
def progress_of(config: LoggingConfig, *, total_steps: int) -> Iterator[Progress]:
    """Open the progress view, with this process's logs printed above it."""
    from agentgym_rl.report import make_progress

    progress = make_progress(config.progress, total_steps=total_steps)
    try:
        log.setup(config.level)  # only now: a live view replaces sys.stderr
        yield progress
    finally:
        progress.close()


def counting(done: str, what: str = "tokens") -> Callable[[int], None]:
    """Return a function that adds to a count and reports the total on stderr now and then."""
    total, say = 0, log.now_and_then()

    def count(more: int) -> None:
        nonlocal total
        total += more
        say(f"{what} {done}: {total:,}")

    return count


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command, as a JSON object or as text."""
    print_json(value) if as_json else print(in_colour("result", text, sys.stdout))


def in_colour(kind: str, text: str, stream: TextIO) -> str:
    """Return a text of a kind, "error", "result" or "help", as installed packages colour it for a
    stream (functions of the group `agentgym_rl.colours`)."""
    colours: Iterator[Any] = iter(load_extensions("colours", of=object).values())
    for colour in colours:
        text = colour(kind, text, stream)
    return text


def print_json(value: Any) -> None:
    """Print a JSON object; if stdout is reserved for JSON, only the first object is printed."""
    text = json.dumps(_finite(value), allow_nan=False)
    if (answer := log.the_answer()) is None:
        print(text)
    else:
        answer.give(text)


def _finite(value: Any) -> Any:
    """Return the value with null for numbers that are not finite, and with sets as lists."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
