"""Logging: stdlib loggers, one set-up, everything on stderr (stdout belongs to results)."""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


def setup(level: str = "info") -> None:
    """Send this process's logs to stderr; third parties only from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("agentgym_rl", "arl_envs", "arl_agents", "arl_sandboxes"):
        logging.getLogger(name).setLevel(level.upper())
