"""Tasks that end together (one error for a group of them, the first of several to return), and
calls in threads that nothing waits for at the end."""

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
    """Hold a task group whose first error is raised by itself, and not as a group.

    The error and the group refer to each other, and to all that the failed work was about: a
    request of some megabytes, say. These cycles are cut, or it would all wait for the garbage
    collector, which then takes the longer.
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
    """Run `call` in a thread of its own, which keeps no other and no process from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # cannot be cancelled; callers may stop waiting

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
