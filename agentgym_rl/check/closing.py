"""Environments are closed in time, or left behind: a check itself always ends."""

from __future__ import annotations

from agentgym_rl.env import Env
from agentgym_rl.wrappers import within

CLOSE_S = 5.0
"""Longest `close` that is still in order."""
HUNG_S = 0.001
"""Waited for the others once one has hung: a check closes hundreds."""


class Closing:
    """Closes the environments of a check; whether that works is judged by criterion `close`."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = CLOSE_S if limit_s is None else limit_s
        """What the next one is given."""

    async def close(self, env: Env) -> None:
        """Close it; one that takes longer than `limit_s` is cancelled, whatever it raises is
        dropped."""
        try:
            await within(self.limit_s, env.close())
        except TimeoutError:
            self.limit_s = min(self.limit_s, HUNG_S)
        except (Exception, SystemExit):  # somebody else's code
            return
