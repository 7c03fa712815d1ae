"""Tasks that end together: one error for a group of them, and the first of several to return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
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
