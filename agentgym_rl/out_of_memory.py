"""A process that runs out of memory while it starts a thread ends, and does not hang.

CPython's `Thread.start` waits until the new thread says that it runs. One that fails before that,
for want of memory, never does, and whoever started it waits for ever
(https://github.com/python/cpython/issues/140746): a trainer or an engine that is neither alive nor
dead. All that Python does then is to report an exception that nobody can catch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""
_WORDS = b"out of memory while a thread was started: this process ends\n"


def end_without_memory() -> None:
    """From now on, this process ends where it would hang."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # Of threads this comes only if they never began to run: what they raise later is theirs.
        if unraisable.exc_type is MemoryError and "thread" in (unraisable.err_msg or ""):
            os.write(2, _WORDS)
            os._exit(EXIT_CODE)
        before(unraisable)

    sys.unraisablehook = hook
