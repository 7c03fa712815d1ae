"""A process that runs out of memory while it starts a thread ends, and does not hang.

CPython's `Thread.start` waits until the new thread says that it runs. One that fails before that,
for want of memory, never does, and whoever started it waits for ever
(https://github.com/python/cpython/issues/140746): a trainer or an engine that is neither alive nor
dead. All that Python does then is to report an exception that nobody can catch:
`end_without_memory` listens to that. Where there is no memory left to listen with, either, a thread
that is there already notices that another one was started long ago and has not begun:
`watch_thread_starts`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""
_exit = os._exit  # as it is now: an event loop keeps others from calling it (signals.py)
_WORDS = b"out of memory while a thread was started: this process ends\n"
_LOOK_S = 0.25
_LOOKS = 12
"""Looks in a row that find a thread not begun. Each look had its turn of the interpreter, and so
had that thread; a process that is stopped, or starved of processors, does not look."""


def end_without_memory() -> None:
    """From now on, this process ends where it would hang."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # Of threads this comes only if they never began to run: what they raise later is theirs.
        if unraisable.exc_type is MemoryError and "thread" in (unraisable.err_msg or ""):
            _end()
        before(unraisable)

    sys.unraisablehook = hook


def watch_thread_starts() -> None:
    """From now on, this process ends 3 s after a thread was started that does not begin."""
    threading.Thread(target=_watch, name="thread starts", daemon=True).start()


def _watch() -> None:
    # What `Thread.start` waits for; since Python 2, and still so in 3.14.
    not_begun: dict[threading.Thread, Any] = threading._limbo  # pyright: ignore
    looks: dict[threading.Thread, int] = {}
    try:
        while max(looks.values(), default=0) < _LOOKS:
            time.sleep(_LOOK_S)
            looks = {thread: looks.get(thread, 0) + 1 for thread in list(not_begun)}
    except MemoryError:
        pass
    _end()


def _end() -> None:
    os.write(2, _WORDS)
    _exit(EXIT_CODE)
