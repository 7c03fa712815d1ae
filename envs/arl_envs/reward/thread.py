"""A call in a separate thread, which a cancellation leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


async def in_a_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Return or raise the outcome of `function`. The call cannot be ended: a cancellation leaves
    its thread behind, which then hinders neither another call nor the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))  # as a result: a future takes no StopIteration

    def work() -> None:
        value, error = None, None
        try:
            value = function(*args)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, without a waiter
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, daemon=True, name=f"{function!r:.60}").start()
    value, error = await done
    if error is not None:
        raise error
    return value
