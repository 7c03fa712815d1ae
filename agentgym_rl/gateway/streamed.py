"""The message that the chunks of a stream add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .messages import text_of
from .template import REASONING


class StreamedMessage:
    """Chunks of one choice in; the whole message, how it ended, and its token counts out."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.stop_reason: Any = None
        """What stopped it, where the endpoint says more than OpenAI's does (vLLM)."""
        self.usage: Mapping[str, Any] | None = None
        self._content: list[str] = []
        self._thoughts: dict[str, list[str]] = {}
        self._refusal: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take a chunk in."""
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            self._add_delta(choice.get("delta") or {})
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.stop_reason = choice.get("stop_reason") or self.stop_reason

    def whole(self) -> dict[str, Any]:
        """The assistant message so far."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        message |= {name: "".join(pieces) for name, pieces in self._thoughts.items()}
        if self._refusal:
            message["refusal"] = "".join(self._refusal)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        self._content.append(text_of(delta.get("content")))
        if refusal := delta.get("refusal"):
            self._refusal.append(refusal)
        for name in REASONING:
            if isinstance(thought := delta.get(name), str) and thought:
                self._thoughts.setdefault(name, []).append(thought)
        for piece in delta.get("tool_calls") or ():
            self._add_call(piece)

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(piece.get("index") or 0, empty)
        call["id"] = piece.get("id") or call["id"]
        for name, text in (piece.get("function") or {}).items():
            call["function"][name] = call["function"].get(name, "") + (text or "")
