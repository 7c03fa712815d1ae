"""A wrapper that lets the agent try a task several times, for less reward."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from agentgym_rl.core import ConfigError, Message, is_mapping
from agentgym_rl.gym.env import Env, Step

from .wrapper import Wrapper, checked_limit

FEEDBACK = "That is not right yet. Try again."

_ROUNDING = 1e-9
"""The tolerance for success: ten rewards of .1 do not quite add up to 1."""


class Attempts(Wrapper):
    """A wrapper for up to `max_attempts` at a task: several episodes of `env` appear as one.

    An attempt that terminates with less than `success` is followed by another: `env` is reset to
    the same task, and the agent gets `feedback` as a user message; the first messages are not
    repeated. The episode's reward is that of its last attempt, times `discount` for each earlier
    attempt: the reward of an attempt is subtracted when another begins. Truncation ends the
    episode. `solve` is that of the environment: success at the first attempt.

    An environment's own `max_turns` is for one attempt; here it is `max_attempts` times that,
    shared by all attempts. Another limit of the episode (`turns`) is also for all attempts
    together. No attempt begins without a turn left.

    `info["metrics"]["attempts"]` counts the attempts begun; `info["reward_components"]` has the
    reward `attempt_<n>` of every attempt that has ended.

    Raises:
        ConfigError: `max_attempts` is not a whole number above 0, or `discount` not in [0, 1].
    """

    def __init__(
        self,
        env: Env,
        max_attempts: int,
        feedback: str = FEEDBACK,
        discount: float = 1.0,
        success: float = 1.0,
        *,
        turns: int | None = None,
    ) -> None:
        super().__init__(env)
        if not 0 <= discount <= 1:
            raise ConfigError(f"discount: got {discount!r}, expected a number from 0 to 1")
        self._max_attempts = checked_limit("max_attempts", max_attempts)
        self._feedback = feedback
        self._discount = discount
        self._success = success
        self.turns = turns
        """The maximum number of turns of all attempts together; None: `max_turns`."""
        self._again: dict[str, Any] = {}
        self._start()

    @property
    def max_turns(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        each = self.env.max_turns
        return each and each * self._max_attempts

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        if seed is None and "task" not in (options or {}):
            seed = random.getrandbits(32)  # so that the same task can be reset again
        self._again = {"seed": seed, "options": options}
        self._start()
        return await self.env.reset(**self._again)

    async def step(self, action: Message) -> Step:
        step = await self.env.step(action)
        self._turn += 1
        self._earned += step.reward
        paid = step.reward * self._discount ** (self._attempt - 1)
        self._paid += paid
        if step.terminated or step.truncated:
            self._rewards[f"attempt_{self._attempt}"] = self._earned
        if not step.terminated or step.truncated or not self._may_try_again():
            return step._replace(reward=paid, info=self._with_attempts(step.info))
        taken_back, self._paid, self._earned = self._paid, 0.0, 0.0
        self._attempt += 1
        await self.env.reset(**self._again)
        info = {name: value for name, value in step.info.items() if name != "stop_reason"}
        observation = [*_unanswered(action, step.observation), *step.observation]
        return Step(
            _with_feedback(observation, self._feedback),
            paid - taken_back,
            terminated=False,
            truncated=False,
            info=self._with_attempts(info),
        )

    def _start(self) -> None:
        self._attempt, self._turn = 1, 0
        self._earned, self._paid = 0.0, 0.0
        self._rewards: dict[str, float] = {}

    def _may_try_again(self) -> bool:
        if self._earned >= self._success or math.isclose(
            self._earned, self._success, abs_tol=_ROUNDING
        ):
            return False
        turns = self.max_turns if self.turns is None else self.turns
        return self._attempt < self._max_attempts and (turns is None or self._turn < turns)

    def _with_attempts(self, info: Mapping[str, Any]) -> dict[str, Any]:
        extended = {**info, "metrics": {**info.get("metrics", {}), "attempts": self._attempt}}
        if self._rewards:
            extended["reward_components"] = {**info.get("reward_components", {}), **self._rewards}
        return extended


def _unanswered(action: Message, observation: list[Message]) -> list[Message]:
    """Return answers to the unanswered tool calls: chat formats require one for each."""
    answered = {message.get("tool_call_id") for message in observation}
    calls = action.get("tool_calls")
    ids = [c["id"] for c in calls or () if is_mapping(c) and isinstance(c.get("id"), str)]
    return [
        {"role": "tool", "tool_call_id": name, "content": "This ended the attempt."}
        for name in ids
        if name not in answered
    ]


def _with_feedback(observation: list[Message], feedback: str) -> list[Message]:
    """Add `feedback` to `observation`; merge user messages: not all chat formats take two."""
    last: Message = observation[-1] if observation else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        return [*observation[:-1], {**last, "content": f"{last['content']}\n\n{feedback}"}]
    return [*observation, {"role": "user", "content": feedback}]
