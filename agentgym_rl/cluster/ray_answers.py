"""What the host of a process says, or how it failed: a ProcessDied, never an error of Ray's own."""

# ray may not be in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from agentgym_rl.errors import ProcessDied


async def end_of(name: str, reference: Any) -> ProcessDied | None:
    """What a host says, which is nothing or how its child has ended."""
    try:
        return await answer(name, reference)
    except ProcessDied as error:
        return error


async def answer(name: str, reference: Any, *, timeout_s: float | None = None) -> Any:
    try:
        async with asyncio.timeout(timeout_s):
            return await reference
    except TimeoutError:
        raise ProcessDied(
            f"{name}: its node, or its host there, did not answer within {timeout_s:g} s"
        ) from None
    except RayTaskError as error:
        cause = error.cause
        raise (
            cause if isinstance(cause, ProcessDied) else ProcessDied(f"{name}: {error}")
        ) from error
    except RayActorError as error:
        raise ProcessDied(f"{name}: its host is gone: {error}") from error
