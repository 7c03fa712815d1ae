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
    """Hold a task group whose first error is raised by itself, and not as a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


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
