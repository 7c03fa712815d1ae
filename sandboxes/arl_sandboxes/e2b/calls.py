"""A deadline, and an error type of this project, around every call of the SDK.

On Python 3.11 the SDK's own deadline of a command does not fire. On other versions it fires, but
the command that was started goes on (e2b 2.63).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
from connectrpc.errors import ConnectError
from e2b.exceptions import (
    AuthenticationException,
    BuildException,
    SandboxException,
    ServiceBusyException,
)

from agentgym_rl import SandboxError, SandboxLost, SandboxUnavailable

FAILURES = (
    *(SandboxException, ServiceBusyException, BuildException),
    *(httpx.HTTPError, ConnectError, OSError),
    *(ValueError, KeyError),  # the HTML page of a proxy, if the SDK expected JSON
)
"""The exceptions of the SDK if E2B, or the connection to it, fails."""


@contextlib.asynccontextmanager
async def deadline(
    what: str, seconds: float, *, otherwise: type[SandboxError] = SandboxLost
) -> AsyncIterator[None]:
    """Bound the time of the SDK's calls inside, and convert their failures to our errors.

    Args:
        what: The name of the action, for the message.
        otherwise: The type of error for failures other than those of the account.

    Raises:
        SandboxUnavailable: the key is not accepted.
        SandboxError: of the type `otherwise`: no answer in time, or E2B failed.
    """
    task = asyncio.current_task()
    assert task is not None
    before, clock = task.cancelling(), asyncio.timeout(seconds)
    try:
        async with clock:
            yield
        # Python 3.11's `wait_for`, which the SDK uses, may lose a cancellation.
        if task.cancelling() > before:
            raise asyncio.CancelledError
    except (*FAILURES, AuthenticationException) as error:
        # The SDK may turn a cancellation into an error of its own.
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
