"""The verdicts on a submission, and whether the program or the machine is at fault for a lost
sandbox."""

from __future__ import annotations

import logging
from enum import StrEnum

from agentgym_rl import SandboxLost
from agentgym_rl.gym.sandbox import SandboxBackend
from agentgym_rl.runtime.log import Repeated


class Verdict(StrEnum):
    """A verdict on a submission: that of the first failed test."""

    ACCEPTED = "accepted"
    """A pass of every hidden test."""
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    """A run that raised, exited with another code than 0, was killed, or printed without end."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    NO_CODE = "no_code"
    """A message without a program."""
    INFRA_ERROR = "infra_error"
    """A failure of the sandbox without fault of the submission: no reward is known."""


_WARNINGS = Repeated(logging.getLogger(__name__))

CREATE_TIMEOUT_S = 60.0


async def blame(sandboxes: SandboxBackend, error: SandboxLost) -> None:
    """Blame a program for the loss of two sandboxes (one may be chance), unless a harmless program
    loses its sandbox as well.

    Raises:
        SandboxError: the harmless program fails, too.
    """
    async with await sandboxes.create(timeout_s=CREATE_TIMEOUT_S) as sandbox:
        result = await sandbox.run_python("print(6 * 7)")
    if result.stdout.strip() != b"42":
        raise error
    _WARNINGS.warn("a program ended its sandbox twice: %s", error, why=str(error))
