"""Logging: stdlib loggers, one set-up, everything on stderr (stdout belongs to results)."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

SAY_EVERY_S = 2.0
FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def setup(level: str = "info") -> None:
    """Send this process's logs to stderr; third parties only from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("agentgym_rl", "arl_envs", "arl_agents", "arl_sandboxes"):
        logging.getLogger(name).setLevel(level.upper())


def now_and_then() -> Callable[[str], None]:
    """Says how far a command is, on stderr: what it is called with, at most every SAY_EVERY_S."""
    said = time.monotonic()

    def say(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= SAY_EVERY_S:
            said = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return say
