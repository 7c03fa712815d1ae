"""What comes out of an environment is what the contract says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentgym_rl.env import Message, Step
from agentgym_rl.trajectory import added_reward

from .wrapper import Wrapper


class PassiveChecker(Wrapper):
    """Checks what `reset` and `step` return; never what they do (that is `arl check`)."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return checked_reset(await self.env.reset(seed=seed, options=options))

    async def step(self, action: Message) -> Step:
        return checked_step(await self.env.step(action))


def checked_reset(result: Any) -> tuple[list[Message], dict[str, Any]]:
    """What an environment's `reset` returned, if it is what the contract says.

    Raises:
        TypeError: it is not (messages, info).
    """
    match result:
        case (list() as messages, dict() as info) if _are_messages(messages):
            return messages, info
    raise TypeError(f"env.reset must return (list of messages, info dict), got {result!r:.200}")


def checked_step(result: Any) -> Step:
    """What an environment's `step` returned, as a Step; numpy scalars and the like are fine.

    Raises:
        TypeError, ValueError: it is no five-tuple of the contract's types, or not finite.
    """
    try:
        observation, given, terminated, truncated, info = result
        reward = float(given)
        metrics = info.get("metrics")
        if metrics:
            metrics = {name: float(value) for name, value in metrics.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise TypeError(
            "env.step must return (observation, reward, terminated, truncated, info) with a "
            f"number as reward and numbers as info['metrics'], got {result!r:.200}"
        ) from error
    if not isinstance(observation, list) or not _are_messages(observation):
        raise TypeError(f"env.step's observation must be a list of messages, got {observation!r}")
    added_reward(0.0, reward, what="env.step's reward")
    if metrics and not all(map(math.isfinite, metrics.values())):
        raise ValueError(f"env.step's metrics must be finite, got {metrics}")
    if metrics:
        info = {**info, "metrics": metrics}
    elif (
        type(result) is Step
        and type(given) is float
        and type(terminated) is type(truncated) is bool
    ):
        return result  # nothing to put right, as on most steps
    return Step(observation, reward, bool(terminated), bool(truncated), info)


def _are_messages(items: list[Any]) -> bool:
    """Written out, and dicts first: this runs on every step, and an abstract class is slow."""
    for item in items:  # noqa: SIM110
        if not isinstance(item, dict) and not isinstance(item, Mapping):
            return False
    return True
