"""The decision whether the program or the machine is at fault for a lost sandbox."""

from __future__ import annotations

import logging

from agentgym_rl.core.errors import SandboxLost
from agentgym_rl.gym.sandbox import SandboxBackend
from agentgym_rl.runtime.log import Repeated

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
    _WARNINGS.warn("a program was the end of its sandbox twice: %s", error, why=str(error))
