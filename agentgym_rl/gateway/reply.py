"""The interface of a reply to its writer, from our own engine or from a model served elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .messages import call_id, reasoning_keys
from .parsers import Event, ToolCall


class Reply(ABC):
    """A sample for a request. A stream's counts and `finish_reason` are known only at its end."""

    id: str
    """The unique id, from which the ids of responses, items and thoughts are made."""
    number: int
    """The number of its request in the session."""
    index: int
    """The index among the request's samples."""
    message: dict[str, Any]
    """The chat message for the client; complete at the end."""

    @property
    @abstractmethod
    def finish_reason(self) -> str:
        """Return the finish reason, as in OpenAI."""

    @property
    @abstractmethod
    def stop_string(self) -> str | None:
        """Return the stop string that ended the message."""

    @property
    @abstractmethod
    def temperature(self) -> float:
        """Return the temperature of the sample."""

    @property
    @abstractmethod
    def num_prompt_tokens(self) -> int:
        """Return the number of prompt tokens."""

    @property
    @abstractmethod
    def num_sampled_tokens(self) -> int:
        """Return the number of tokens in the reply, including its end token."""

    @property
    def num_cached_tokens(self) -> int:
        """Return how many prompt tokens were reported to be in a cache."""
        return 0

    @abstractmethod
    def reasoning_tokens(self) -> int:
        """Return the number of sampled tokens up to the end of the thoughts."""

    def logprobs(self) -> dict[str, Any] | None:
        """Return the log-probs in OpenAI's format, if requested."""
        return None

    def call_id(self, position: int) -> str:
        """Return the id of the tool call number `position`."""
        return call_id(self.number, position)

    def spelled(self, content: str, thoughts: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        """Return the chat message with this content."""
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
"""A callback for the events that are added to a reply, possibly none."""


def total_usage(replies: Sequence[Reply]) -> dict[str, int]:
    """Return the token counts of a request: its prompt, once, and all sampled tokens, including the
    tokens that end replies."""
    prompt = replies[0].num_prompt_tokens
    sampled = sum(reply.num_sampled_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
