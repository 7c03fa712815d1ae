"""A deadline of ours, and an error of ours, around every call of the SDK.

On Python 3.11 the SDK's own deadline of a command does not fire, and where it does, what was
started goes on (e2b 2.63).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
from connectrpc.errors import ConnectError
from e2b.exceptions import AuthenticationException, SandboxException, ServiceBusyException

from agentgym_rl.core.errors import SandboxError, SandboxLost, SandboxUnavailable

FAILURES = (
    *(SandboxException, ServiceBusyException),
    *(httpx.HTTPError, ConnectError, OSError),
    *(ValueError, KeyError),  # a page of some proxy, where the SDK expected JSON
)
"""What the SDK raises when E2B, or the way to it, fails."""


@contextlib.asynccontextmanager
async def deadline(
    what: str, seconds: float, *, otherwise: type[SandboxError] = SandboxLost
) -> AsyncIterator[None]:
    """Bound the SDK's calls inside it, and speak of their failures in our words.

    Args:
        what: What is being done, for the message.
        otherwise: What a failure is that is not about the account.

    Raises:
        SandboxUnavailable: the key is not accepted.
        SandboxError: of the kind `otherwise`: no answer in time, or E2B failed.
    """
    task = asyncio.current_task()
    assert task is not None
    before, clock = task.cancelling(), asyncio.timeout(seconds)
    try:
        async with clock:
            yield
        # Python 3.11's `wait_for`, which the SDK uses, may lose a cancellation altogether.
        if task.cancelling() > before:
            raise asyncio.CancelledError
    except (*FAILURES, AuthenticationException) as error:
        # The SDK may make an error of its own of a cancellation.
        if task.cancelling() > before:
            raise asyncio.CancelledError from error
        if clock.expired():
            raise otherwise(f"E2B, {what}: no answer within {seconds:g} s") from error
        if isinstance(error, AuthenticationException):
            raise SandboxUnavailable(
                f"E2B, {what}: {error}; set E2B_API_KEY to a key of "
                "https://e2b.dev/dashboard?tab=keys"
            ) from error
        raise otherwise(f"E2B, {what}: {type(error).__name__}: {error}") from error
