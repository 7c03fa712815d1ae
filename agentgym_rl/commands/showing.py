"""How commands show what they do, and print what they found."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from agentgym_rl import log

if TYPE_CHECKING:
    from agentgym_rl.config import Config
    from agentgym_rl.inspect.progress import Progress


@contextmanager
def progress_of(config: Config, *, total_steps: int) -> Iterator[Progress]:
    """The progress view, with this process's logs above it."""
    from agentgym_rl.inspect.progress import make_progress

    progress = make_progress(config.logging.progress, total_steps=total_steps)
    try:
        log.setup(config.logging.level)  # now: a live view has put itself in front of stderr
        yield progress
    finally:
        progress.close()


def counting(done: str, what: str = "tokens") -> Callable[[int], None]:
    """Says on stderr how much is done."""
    total, say = 0, log.now_and_then()

    def count(more: int) -> None:
        nonlocal total
        total += more
        say(f"{what} {done}: {total:,}")

    return count


class Answer:
    """The one JSON object that a command with `--json` writes to its stdout."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.given = False

    def give(self, text: str) -> None:
        """Write the object, if none was written yet."""
        if not self.given:
            self.given = True
            self._file.write(text + "\n")
            self._file.flush()

    @property
    def descriptor(self) -> int | None:
        """The file descriptor of the stdout that is kept for the object; None in a test that has
        put something else in the place of stdout."""
        try:
            return self._file.fileno()
        except OSError:
            return None


_answer: Answer | None = None


def the_answer() -> Answer | None:
    """The object that stdout is kept for, while it is."""
    return _answer


@contextmanager
def kept_for_json() -> Iterator[Answer]:
    """Keep stdout for what `print_json` writes: meanwhile, anything else written there goes to
    stderr. Environments and agents print, and so do the libraries and programs that they use, by
    file descriptor 1."""
    global _answer
    sys.stdout.flush()
    before, file = _answer, sys.stdout
    number = file.fileno() if file is sys.__stdout__ else None
    if number is not None:
        file = os.fdopen(os.dup(number), "w", encoding="utf-8")
        os.dup2(sys.__stderr__.fileno() if sys.__stderr__ else 2, number)
    _answer = Answer(file)
    try:
        with redirect_stdout(sys.stderr):
            yield _answer
    finally:
        _answer = before
        if number is not None:
            if sys.__stdout__:
                sys.__stdout__.flush()
            os.dup2(file.fileno(), number)
            file.close()


def print_json(value: Any) -> None:
    """Print a JSON object. Where stdout is kept for it, only the first one is."""
    text = json.dumps(_finite(value), allow_nan=False)
    if _answer is None:
        print(text)
    else:
        _answer.give(text)


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no number for, and sets as lists."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
