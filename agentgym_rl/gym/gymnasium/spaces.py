"""Gymnasium spaces for replies and messages: open sets with only `contains` and `sample`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import Space

from agentgym_rl.core.chat import Message

_WORDS = ("yes", "no", "0", "1", "left", "right", "I do not know.", "\\boxed{0}")


class Reply(Space[Any]):
    """The space of actions: the text of a reply, or an assistant message (also with tool calls)."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short text; `mask` and `probability` have no meaning here."""
        return str(self.np_random.choice(_WORDS))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) or (isinstance(x, Mapping) and x.get("role") == "assistant")

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Messages(Reply):
    """The space of observations: lists of new messages."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return [{"role": "user", "content": super().sample()}]

    def contains(self, x: Any) -> bool:
        return isinstance(x, list) and all(
            isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in x
        )


def message_of(action: str | Message) -> Message:
    """Return an action of `Reply` as an assistant message.

    Raises:
        TypeError: the action is not valid.
    """
    if isinstance(action, str):
        return {"role": "assistant", "content": action}
    if isinstance(action, Mapping):
        return action
    raise TypeError(
        f"an action is a text or an assistant message, got {type(action).__name__}: {action!r:.80}"
    )
