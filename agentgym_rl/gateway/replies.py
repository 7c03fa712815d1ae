"""Chat completions as bytes: one JSON object, or server-sent events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from .messages import reasoning_keys
from .parsers import Event, Reasoning

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


class Reply:
    """Writes the reply to one request, whole or in chunks, under one id."""

    def __init__(self, completion_id: str, *, model: str) -> None:
        self._head = {"id": completion_id, "created": int(time.time()), "model": model}

    def whole(
        self,
        message: Mapping[str, Any],
        *,
        finish_reason: str,
        usage: Mapping[str, int],
        logprobs: Mapping[str, Any] | None,
    ) -> bytes:
        """The body of a reply that is not streamed."""
        choice = {
            "index": 0,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        head = {**self._head, "object": "chat.completion"}
        return _encode({**head, "choices": [choice], "usage": usage})

    def chunk(
        self,
        delta: Mapping[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: Mapping[str, Any] | None = None,
    ) -> bytes:
        """One event of a stream."""
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return self._event([choice], {})

    def usage(self, usage: Mapping[str, int]) -> bytes:
        """The event that `stream_options.include_usage` asks for."""
        return self._event([], {"usage": usage})

    def _event(self, choices: list[Any], more: Mapping[str, Any]) -> bytes:
        head = {**self._head, "object": "chat.completion.chunk"}
        return b"data: " + _encode({**head, "choices": choices, **more}) + b"\n\n"


def error_event(body: Mapping[str, Any]) -> bytes:
    """An error after the stream has begun; clients raise it."""
    return b"data: " + _encode(body) + b"\n\n"


def delta_of(event: Event, position: int, *, id: str) -> dict[str, Any]:
    """What a client appends: a piece of content or of reasoning, or a whole tool call."""
    if isinstance(event, str):
        return {"content": event}
    if isinstance(event, Reasoning):
        return reasoning_keys(event.text)
    function = {"name": event.name, "arguments": event.arguments}
    call = {"index": position, "id": id, "type": "function", "function": function}
    return {"tool_calls": [call]}
