"""A reply as its writer sees it, whoever made it: an engine of ours, or somebody else's model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .messages import call_id, reasoning_keys
from .parsers import Event, ToolCall


class Reply(ABC):
    """One sample for a request. Of a stream, counts and `finish_reason` are known at its end."""

    id: str
    """Never used before; ids of responses, items and thoughts are made of it."""
    number: int
    """Of its request, in the session."""
    index: int
    """Of the request's samples."""
    message: dict[str, Any]
    """What the client gets, as a chat message; whole at the end."""

    @property
    @abstractmethod
    def finish_reason(self) -> str:
        """As in OpenAI."""

    @property
    @abstractmethod
    def stop_string(self) -> str | None:
        """The stop string that ended the message."""

    @property
    @abstractmethod
    def temperature(self) -> float:
        """It was sampled at."""

    @property
    @abstractmethod
    def num_prompt_tokens(self) -> int:
        """Tokens it was sampled from."""

    @property
    @abstractmethod
    def num_sampled_tokens(self) -> int:
        """Tokens of the reply, the one that ends it included."""

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt, those that somebody said to have had in a cache."""
        return 0

    @abstractmethod
    def reasoning_tokens(self) -> int:
        """Sampled tokens up to the end of the thoughts."""

    def logprobs(self) -> dict[str, Any] | None:
        """Log-probs in OpenAI's shape, if they were asked for."""
        return None

    def call_id(self, position: int) -> str:
        """The id of the tool call number `position`."""
        return call_id(self.number, position)

    def spelled(self, content: str, thoughts: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """The chat message that says this."""
        spoken = reasoning_keys(thoughts)
        if not calls:
            return {"role": "assistant", "content": content, **spoken}
        called = [
            {
                "id": self.call_id(position),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for position, call in enumerate(calls)
        ]
        return {"role": "assistant", "content": content or None, **spoken, "tool_calls": called}


OnEvents = Callable[[Reply, Sequence[Event]], Awaitable[None]]
"""Told of what is added to a reply, possibly nothing."""


def total_usage(replies: Sequence[Reply]) -> dict[str, int]:
    """Token counts of a request: its prompt, once, and all that was sampled, the tokens that end
    replies included."""
    prompt = replies[0].num_prompt_tokens
    sampled = sum(reply.num_sampled_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
