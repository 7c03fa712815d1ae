"""The verdicts on a submission, and whether the program or the machine is at fault for a lost
sandbox."""

from __future__ import annotations

import logging
import re
from enum import StrEnum

from agentgym_rl import SandboxLost
from agentgym_rl.gym import SandboxBackend
from agentgym_rl.runtime import Repeated


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


_log = logging.getLogger(__name__)
_WARNINGS = Repeated(_log)

CREATE_TIMEOUT_S = 60.0
_MISSING = re.compile(r"No module named '([A-Za-z_]\w*)")


def log_missing(detail: str) -> None:
    """Log once that programs import a package which their sandbox does not have."""
    match = _MISSING.search(detail)
    if match and match[1] in OFTEN_USED and match[1] not in _LOGGED:
        _LOGGED.add(match[1])
        _log.warning(
            "a submission imports %s, which its sandbox does not have: if the tasks need it, "
            "--sandbox.options.packages='[\"%s\"]' shows it (local, where it is installed), or use "
            "an image that has it (docker)",
            match[1], match[1],
        )  # fmt: skip


OFTEN_USED = ("numpy", "scipy", "pandas", "sympy", "networkx", "sortedcontainers", "sklearn")
"""The packages that solutions of public data sets import."""
_LOGGED: set[str] = set()


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
