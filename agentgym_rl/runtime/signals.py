"""The handling of Ctrl-C and SIGTERM: a run ends cleanly and in time, whatever foreign code
does."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from .guard import BEAT_S, Guard
from .log import the_answer

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_S = 2.0
"""The time, in seconds, for remaining tasks to end, and for remaining threads once all else has
ended."""
_EXIT_S = 8.0
"""The time, in seconds, that an interrupted process has for functions registered with `atexit`."""
_exit = os._exit


def run_interruptible(main: Callable[[], Coroutine[Any, Any, T]], *, hang_s: float = 600.0) -> T:
    """Run a coroutine on uvloop until it ends, or SIGINT or SIGTERM cancels it.

    A second signal only logs that closing everything takes a moment; a third one exits at once with
    code 130 (children die with their parent). Both signals are handled even if they were inherited
    as ignored, as in `arl train &` of a script. Another process watches over the loop meanwhile
    (guard.py): it names the code that blocks the loop, and ends this process if the loop is blocked
    for 8 s after a signal, or for `hang_s`.

    Raises:
        KeyboardInterrupt: the coroutine was interrupted, and everything is closed; its arguments
            are the notes of the cancellation.
    """
    import uvloop

    answer = the_answer()
    with (
        Guard(hang_s=hang_s, answer=answer.descriptor if answer else None) as guard,
        _Interrupts(guard) as interrupts,
        _exits_refused(),
    ):
        loop = uvloop.new_event_loop()
        try:
            return loop.run_until_complete(interrupts.guard(main))
        except asyncio.CancelledError as error:
            if interrupts.count:
                raise KeyboardInterrupt(*getattr(error, "__notes__", ())) from None
            raise
        finally:
            loop.run_until_complete(_end_tasks())
            loop.close()


async def _end_tasks() -> None:
    """Cancel all remaining tasks, close async generators, and wait for both, up to CLOSE_S seconds
    each."""
    loop = asyncio.get_running_loop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    stuck: set[asyncio.Task[Any]] = set()
    for tasks in (left, {loop.create_task(loop.shutdown_asyncgens())}):
        if tasks:
            stuck |= (await asyncio.wait(tasks, timeout=CLOSE_S))[1]
    for task in stuck:
        keep(task)
    if stuck:
        log.error(
            "%d tasks did not end after their cancellation, and are abandoned; one is %r",
            *(len(stuck), next(iter(stuck))),
        )


def stop_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on, for a server in the running loop."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def keep(work: object) -> None:
    """Keep a task, coroutine or generator from ever being destroyed, even when the process ends.

    Python destroys one by raising an error inside it. Code that swallows every error continues, and
    once the event loop is closed every further wait is an error, too: it would run for ever.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))


class _Interrupts:
    def __init__(self, guard: Guard) -> None:
        self.count = 0
        self._is_closing = False
        self._guard = guard
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> _Interrupts:
        signals = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._handle) for number in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    async def guard(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `main`; an interrupt cancels it, even one before this call."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.count:
            raise asyncio.CancelledError
        self._beat()
        # Signals wake the guard, too. The previous descriptor was the loop's own, so the loop now
        # handles signals when it increments its counter.
        its_own = signal.set_wakeup_fd(self._guard.wakeup.fileno(), warn_on_full_buffer=False)
        try:
            return await main()
        finally:
            with suppress(OSError, ValueError):  # closed, if SystemExit has ended the loop
                signal.set_wakeup_fd(its_own)

    def _beat(self) -> None:
        assert self._loop is not None
        self._guard.beat()
        self._loop.call_later(BEAT_S, self._beat)

    def _handle(self, number: int, frame: object) -> None:
        self.count += 1
        if self.count > 2:
            show_cursor = b"\x1b[?25h\n" if os.isatty(2) else b""
            os.write(2, show_cursor + b"arl: interrupted\n")
            _exit(130)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._act)  # logging is not safe in a handler

    def _act(self) -> None:
        # `count` does not say which signal this is: a second one may have come before the first
        # call, while something blocked the loop.
        if self._is_closing:
            log.warning("closing; a second signal ends the process at once")
        elif self._task is not None:
            self._is_closing = True
            self._task.cancel()


@contextmanager
def _exits_refused() -> Iterator[None]:
    """Make `os._exit` raise `SystemExit` in this process while the context is open. An environment
    that calls it would end the run without a message, and with the exit code 0."""
    pid = os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != pid:  # a fork of this process
            _exit(status)
        caller = sys._getframe(1)
        where = f"{caller.f_code.co_filename}, line {caller.f_lineno}, in {caller.f_code.co_name}"
        message = (
            f"os._exit({status!r}) was called, which would end the whole run without a word "
            f"({where}). An environment or an agent raises an error instead"
        )
        if threading.current_thread() is not threading.main_thread():
            log.error("%s", message)  # Python does not report a SystemExit that ends a thread
        raise SystemExit(message)

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = _exit


def leave_in_time(code: int) -> None:
    """Make this process end with `code`, from now on, even if foreign threads do not end: Python
    would wait for them for ever.

    An interrupted process (`code` 130) ends in this call, once functions registered with `atexit`
    have run. If these block, it prints their stack, and ends with code 1. Objects are not destroyed
    one by one, since their `__del__` may block, and destructors of C++ may in a forked process.
    """
    # This module registers a wait for its pool's threads in the same way; the last one registered
    # runs first.
    import concurrent.futures.thread  # noqa: F401

    global _code
    if _code is None:  # Python calls the function before it waits for threads
        threading._register_atexit(_begin_to_leave)  # pyright: ignore[reportAttributeAccessIssue]
        # Already now: from Python 3.12 on no thread starts while the interpreter shuts down.
        threading.Thread(target=_leave, name="leaving", daemon=True).start()
    _code = code
    if code == 130:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its reader has left, or it is closed
                stream.flush()
        _exit(code)


_code: int | None = None
_leaving = threading.Event()


def _begin_to_leave() -> None:
    if _code == 130:
        faulthandler.dump_traceback_later(_EXIT_S, exit=True, file=2)
    _leaving.set()


def _leave() -> None:
    _leaving.wait()  # as long as the process lives: the thread does not keep it alive
    time.sleep(CLOSE_S)
    main, frames = threading.main_thread(), sys._current_frames()
    for thread in threading.enumerate():
        if thread.daemon or thread is main or thread.ident not in frames:
            continue
        where = traceback.extract_stack(frames[thread.ident])[-1]
        text = (
            f"arl: thread {thread.name!r} does not end, and is left alone: {where.filename}, "
            f"line {where.lineno}, in {where.name}\n"
        )
        os.write(2, text.encode())
        _exit(_code or 0)
