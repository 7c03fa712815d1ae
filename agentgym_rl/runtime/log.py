"""The logging, by stdlib loggers with a single set-up; all logs go to stderr, since stdout is for
results."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

SAY_EVERY_S = 2.0
OURS = (
    *("agentgym_rl", "arl_isolation", "arl_envs", "arl_agents", "arl_sandboxes"),
    *("arl_audit", "arl_callbacks", "arl_check", "arl_data", "arl_dialects", "arl_embedded"),
    *("arl_endpoints", "arl_experts", "arl_gloo", "arl_inspect", "arl_lora", "arl_meters"),
    *("arl_notebook", "arl_objectives", "arl_optimizers", "arl_parallel", "arl_parsers"),
    *("arl_plan", "arl_scale", "arl_selfplay", "arl_serve", "arl_sglang", "arl_start"),
    *("arl_terminal", "arl_trackers", "arl_trial", "arl_varlen", "arl_verifier", "arl_vllm"),
    *("arl_megatron", "arl_warmup"),
)
"""The packages of this distribution."""
FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def setup(level: str = "info") -> None:
    """Send this process's logs to stderr; those of third-party packages only from level warning
    up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())


_VARIES = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|0x[0-9a-f]+|[0-9]+(\.[0-9]+)?")
"""The parts that differ between two messages of one kind: names in quotes, addresses, numbers."""
_MOST_KINDS = 20
_FIRST_COUNT = 100


class Repeated:
    """The warnings of many episodes: the first of each kind is logged, then the 100th, the 1,000th
    and so on with the count so far; the others are logged at level debug.

    After the first 20 kinds all warnings of further kinds count as one kind.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: Counter[str] = Counter()
        self._next_shown: dict[str, int] = {}

    def warn(self, message: str, *args: Any, why: str) -> None:
        """Log `message % args`, whose kind is the last line of `why` with its names and numbers
        masked."""
        kind = _VARIES.sub("#", why.strip().rpartition("\n")[2])
        if kind not in self._counts and len(self._counts) >= _MOST_KINDS:
            kind = ""
        self._counts[kind] += 1
        count = self._counts[kind]
        if count == 1:
            text = message % args if args else message
            gap = "\n" if "\n" in text else " "
            self._logger.warning("%s%s(others like this are counted, not shown)", text, gap)
        elif count == self._next_shown.get(kind, _FIRST_COUNT):
            self._next_shown[kind] = 10 * count
            self._logger.warning(f"{message} (%d like this so far)", *args, count)
        else:
            self._logger.debug(message, *args)


def now_and_then() -> Callable[[str], None]:
    """Return a function that prints progress texts to stderr, at most one every SAY_EVERY_S
    seconds."""
    last_s = time.monotonic()

    def say(text: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= SAY_EVERY_S:
            last_s = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return say


class Answer:
    """The one JSON object that a command with `--json` writes to its stdout."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.given = False

    def give(self, text: str) -> None:
        """Write the object, unless one was written before."""
        if not self.given:
            self.given = True
            self._file.write(text + "\n")
            self._file.flush()

    @property
    def descriptor(self) -> int | None:
        """Return the file descriptor of the stdout that is reserved for the object; None in a test
        that has replaced stdout."""
        try:
            return self._file.fileno()
        except OSError:
            return None


_answer: Answer | None = None


def the_answer() -> Answer | None:
    """Return the object for which stdout is reserved at the moment, if there is one."""
    return _answer


@contextmanager
def kept_for_json() -> Iterator[Answer]:
    """Reserve stdout for the object of `--json`, for a context: anything else that is written there
    goes to stderr. Environments and agents print; so do libraries and programs that they use,
    through file descriptor 1."""
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
