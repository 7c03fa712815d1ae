"""Sees what an environment itself returns, before `make`'s wrappers have put it right."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from agentgym_rl.env import Env, Message, Step
from agentgym_rl.errors import InfraError
from agentgym_rl.wrappers import Wrapper


class Spy(Wrapper):
    """Goes around the environment, inside all of `make`'s wrappers, and keeps what it sees."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.resets: list[Any] = []
        self.steps: list[Any] = []
        self.raised: Exception | None = None
        """What the environment's own code raised last."""
        self._lent: list[tuple[str, Any, Any]] = []
        """(what it is, the object, a copy of it as it was)"""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        try:
            found = await self.env.reset(seed=seed, options=options)
        except InfraError:
            raise
        except Exception as error:
            self.raised = error
            raise
        self.resets.append(found)
        self._lend("the first messages", found)
        return found

    async def step(self, action: Message) -> Step:
        self._lend("the action given to step", action)
        try:
            found = await self.env.step(action)
        except InfraError:
            raise
        except Exception as error:
            self.raised = error
            raise
        self.steps.append(found)
        self._lend("an earlier observation", found)
        return found

    def _lend(self, what: str, found: Any) -> None:
        messages = found if isinstance(found, Mapping) else found[0] if _is_tuple(found) else found
        self._lent.append((what, messages, copy.deepcopy(messages)))

    def changed(self) -> str:
        """What was changed after it had been handed over; "" if nothing was."""
        for what, now, before in self._lent:
            if now != before:
                return f"{what} was {before!r:.150} and became {now!r:.150}"
        return ""


def _is_tuple(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) > 0
