"""A process says so in its log when the one that started it is frozen.

`arl train` watches its processes, and nobody watches `arl train`: one that somebody has stopped
(SIGSTOP, Ctrl-Z) and forgotten looks like a run that hangs. The kernel knows better.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from .vital import LOOK_EVERY_S, Vital

log = logging.getLogger(__name__)

STARTED_BY = "ARL_STARTED_BY"
"""Variable with the process id of who looks after this one."""


def watch_starter() -> None:
    """From now on; where this process was started by hand there is nobody to watch."""
    if pid := os.environ.get(STARTED_BY, ""):
        arguments = (int(pid),)
        threading.Thread(target=_watch, args=arguments, name="starter", daemon=True).start()


def _watch(pid: int) -> None:
    vital = Vital(pid, depth=0)
    while True:
        time.sleep(LOOK_EVERY_S)
        if vital.frozen():
            log.warning(
                "process %d, which started this one, is frozen: somebody has stopped it (SIGSTOP, "
                "or Ctrl-Z). The run stands still, and loses nothing, until it goes on: fg, or "
                "kill -CONT %d",
                pid,
                pid,
            )
            since = time.monotonic()
            while vital.stopped():
                time.sleep(LOOK_EVERY_S)
            log.warning("process %d goes on, after %.0f s", pid, time.monotonic() - since)
