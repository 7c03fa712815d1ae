"""The rewards of a finished group by pairs of its members, for `rollout.group_reward`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentgym_rl import Task, Trajectory
from agentgym_rl.gym.tool_env import text_of

from .asking import Asking

GroupReward = Callable[[Task, Sequence[Trajectory]], Awaitable[list[dict[str, float]]]]


def final_answer(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the last message of the assistant; "" if there is none."""
    texts = [text_of(message) for message in messages if message.get("role") == "assistant"]
    return texts[-1] if texts else ""


def first_question(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the first message of the user; "" if there is none."""
    return next((text_of(m) for m in messages if m.get("role") == "user"), "")


def by_pairs(
    judge: Asking,
    criterion: str,
    *,
    opponents: int | None = None,
    reference: Callable[[Task], str] = lambda task: "",
    weight: float = 1.0,
) -> GroupReward:
    """Return a function for `rollout.group_reward`: each member gets `weight` times its mean result
    in comparisons of final answers with the other members (`Asking.rank`)."""

    async def reward(task: Task, members: Sequence[Trajectory]) -> list[dict[str, float]]:
        ranked = await judge.rank(
            first_question(members[0].messages),
            [final_answer(member.messages) for member in members],
            criterion,
            reference=reference(task),
            opponents=opponents,
        )
        return [{**found, "reward": weight * found["reward"]} for found in ranked]

    return reward
