"""The memory of a process: freed memory is returned to the system, and a process that runs out of
memory while it starts a thread ends instead of hanging.

CPython's `Thread.start` waits until the new thread reports that it runs. A thread that fails before
that, for lack of memory, never reports, and `Thread.start` waits for ever
(https://github.com/python/cpython/issues/140746): a trainer or an engine is then neither alive nor
dead. Python only reports an exception that no code can catch; `end_without_memory` hooks into that
report. If there is not even enough memory for the hook, an existing thread notices that another
thread was started long ago and has not begun (`watch_thread_starts`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from typing import Any

EXIT_CODE = 70
"""The exit code EX_SOFTWARE of sysexits.h."""
_exit = os._exit  # the original function: signals.py replaces it for foreign code
_WORDS = b"out of memory while a thread was started: this process ends\n"
_SIGNS = ("out of memory", "OutOfMemoryError", "can't allocate memory", "STATUS_ALLOC_FAILED")
"""The words of torch, CUDA and their libraries for a lack of memory."""
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # in malloc.h
_LARGE = 4 << 20  # bytes
_LOOK_S = 0.25
_LOOKS = 12
"""The number of consecutive checks that find a thread not begun. Each check needs the interpreter,
as that thread does; a process that is stopped, or gets no CPU, makes no checks."""


def give_back_memory() -> None:
    """Return freed memory to the operating system: glibc would keep the gaps between pieces that
    are still in use. Do nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def give_back_large_pieces() -> None:
    """Return each freed piece of 4 MiB or more to the operating system at once, from now on: glibc
    keeps those of up to 32 MiB, in gaps that other sizes do not fill. Do nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        change = ctypes.CDLL("libc.so.6").mallopt
        change(_MMAP_THRESHOLD, _LARGE)
        change(_TRIM_THRESHOLD, 16 * _LARGE)


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error, or its cause, is a lack of memory, on a device or on the host."""
    text, cause = f"{type(error).__name__}: {error}", error.__cause__
    here = isinstance(error, MemoryError) or any(sign in text for sign in _SIGNS)
    return here or (cause is not None and lacks_memory(cause))


def end_without_memory() -> None:
    """Make this process end, from now on, when a thread fails to start for lack of memory."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # A thread causes this only if it never began to run: later errors are raised in the thread.
        if unraisable.exc_type is MemoryError and "thread" in (unraisable.err_msg or ""):
            _end()
        before(unraisable)

    sys.unraisablehook = hook


def watch_thread_starts() -> None:
    """Make this process end, from now on, 3 s after the start of a thread that does not begin."""
    threading.Thread(target=_watch, name="thread starts", daemon=True).start()


def _watch() -> None:
    # `Thread.start` waits for these; since Python 2, and still in 3.14.
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
