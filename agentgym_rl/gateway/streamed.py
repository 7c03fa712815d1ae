"""The message that the chunks of a stream add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class StreamedMessage:
    """Chunks of one choice in; the whole message, how it ended, and its token counts out."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] | None = None
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take a chunk in."""
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            self._content.append(delta.get("content") or "")
            self._thoughts.append(delta.get("reasoning_content") or "")
            for piece in delta.get("tool_calls") or ():
                self._add_call(piece)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def whole(self) -> dict[str, Any]:
        """The assistant message so far."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if thoughts := "".join(self._thoughts):
            message["reasoning_content"] = thoughts
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return message

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(piece.get("index") or 0, empty)
        call["id"] = piece.get("id") or call["id"]
        for name, text in (piece.get("function") or {}).items():
            call["function"][name] = call["function"].get(name, "") + (text or "")
