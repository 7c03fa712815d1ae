"""Logging: stdlib loggers, one set-up, everything on stderr (stdout belongs to results)."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

SAY_EVERY_S = 2.0
FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def setup(level: str = "info") -> None:
    """Send this process's logs to stderr; third parties only from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("agentgym_rl", "arl_envs", "arl_agents", "arl_sandboxes"):
        logging.getLogger(name).setLevel(level.upper())


_VARIES = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|0x[0-9a-f]+|[0-9]+(\.[0-9]+)?")
"""What differs between two messages of one kind: names in quotes, addresses, numbers."""
_MOST_KINDS = 20
_FIRST_COUNT = 100


class Repeated:
    """The warnings of many episodes: of each kind the first is shown, then the 100th, the 1,000th
    and so on with the count so far; the others are logged at level debug.

    Beyond 20 kinds all further ones are of one kind.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: Counter[str] = Counter()
        self._next_shown: dict[str, int] = {}

    def warn(self, message: str, *args: Any, why: str) -> None:
        """Log `message % args`, whose kind is the last line of `why`, whatever names and numbers
        stand in it."""
        kind = _VARIES.sub("#", why.strip().rpartition("\n")[2])
        if kind not in self._counts and len(self._counts) >= _MOST_KINDS:
            kind = ""
        self._counts[kind] += 1
        count = self._counts[kind]
        if count == 1:
            self._logger.warning(f"{message} (others like this are counted, not shown)", *args)
        elif count == self._next_shown.get(kind, _FIRST_COUNT):
            self._next_shown[kind] = 10 * count
            self._logger.warning(f"{message} (%d like this so far)", *args, count)
        else:
            self._logger.debug(message, *args)


def now_and_then() -> Callable[[str], None]:
    """Says how far a command is, on stderr: what it is called with, at most every SAY_EVERY_S."""
    said = time.monotonic()

    def say(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= SAY_EVERY_S:
            said = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return say
