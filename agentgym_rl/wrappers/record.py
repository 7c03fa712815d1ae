"""What was said and paid, for people to read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from agentgym_rl.env import Env, Message, Step

from .wrapper import Wrapper


class Record(Wrapper):
    """Keeps the transcript, and adds `info["episode"]` to the last step.

    That is Gymnasium's {"r": sum of rewards, "l": steps, "t": seconds since reset}. `render()`
    is the transcript as text.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.transcript: list[Message] = []
        """Messages of the episode so far, the agent's included; a list of its own."""
        self._return, self._steps, self._start = 0.0, 0, 0.0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        messages, info = await self.env.reset(seed=seed, options=options)
        self.transcript = list(messages)
        self._return, self._steps, self._start = 0.0, 0, time.monotonic()
        return messages, info

    async def step(self, action: Message) -> Step:
        step = await self.env.step(action)
        self.transcript += [action, *step.observation]
        self._return += step.reward
        self._steps += 1
        if not (step.terminated or step.truncated):
            return step
        seconds = time.monotonic() - self._start
        episode = {"r": self._return, "l": self._steps, "t": seconds}
        return step._replace(info={**step.info, "episode": episode})

    def render(self) -> str:
        """The transcript, a paragraph a message."""
        return "\n\n".join(f"[{m.get('role', '?')}] {_said(m)}" for m in self.transcript)


def _said(message: Message) -> str:
    content = message.get("content")
    said = content if isinstance(content, str) else json.dumps(content) if content else ""
    calls = message.get("tool_calls")
    return "\n".join(filter(None, [said, json.dumps(calls) if calls else ""]))
