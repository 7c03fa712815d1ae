"""Groups of tasks (with a single error, or until the first returns), and calls in threads that do
not delay the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group whose first error is raised by itself, and not as an exception group.

    The error and the exception group refer to each other, and to the objects of the failed work,
    for example a request of some megabytes. These cycles are broken, so that the objects do not
    wait for the garbage collector.
    """
    first: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        first = group.exceptions[0]
        group.__traceback__ = None  # its last frame refers to the group
    if first is not None:  # not above, where the group would become its context
        try:
            raise first from None
        finally:
            first = None


async def first_of(*work: Coroutine[Any, Any, T]) -> T:
    """Run all coroutines, cancel the others once one returns, and return its result."""
    async with asyncio.TaskGroup() as tasks:
        ends = [tasks.create_task(one) for one in work]
        done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
    return done.pop().result()


def in_thread(call: Callable[[], T], *, name: str) -> Future[T]:
    """Run `call` in a new thread, which does not delay the end of other threads or of the
    process."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # cannot be cancelled; callers may stop waiting

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
