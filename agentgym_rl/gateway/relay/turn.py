"""One turn of a model served elsewhere, in the form that a dialect's writer needs. The chunks of a
stream are joined to one message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gateway.messages import text_of
from agentgym_rl.gateway.parsers import Event, Reasoning, ToolCall
from agentgym_rl.gateway.reply import Reply
from agentgym_rl.gateway.template.template import REASONING

from .session import RelaySession, cached_tokens, is_malformed


class StreamedMessage:
    """An accumulator of one choice's chunks: message, finish reason and token counts."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.stop_reason: Any = None
        """The cause of the stop, if the endpoint reports more than OpenAI's does (vLLM)."""
        self.usage: Mapping[str, Any] | None = None
        self._content: list[str] = []
        self._thoughts: dict[str, list[str]] = {}
        self._refusal: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk."""
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            self._add_delta(choice.get("delta") or {})
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.stop_reason = choice.get("stop_reason") or self.stop_reason

    def whole(self) -> dict[str, Any]:
        """Return the assistant message so far."""
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


_ENDS = ("length", "content_filter")
"""The finish reasons that the endpoint decides, not the reply's own content."""


class RelayedTurn(Reply):
    """A reply in progress: chunks of chat completions in, events out.

    `original` is the endpoint's message; `message` is its form for the agent.
    """

    def __init__(
        self, session: RelaySession, number: int, *, stop: tuple[str, ...], temperature: float
    ) -> None:
        self.id = session.request_id(number)
        self.number = number
        self.index = 0
        self.message: dict[str, Any] = {}
        self.original: Mapping[str, Any] = {}
        self._stop = stop
        self._temperature = temperature
        self._said = StreamedMessage()
        self._calls: list[ToolCall] = []

    def add(self, chunk: Mapping[str, Any]) -> list[Event]:
        """Return the events of a chunk. Calls come at the end, when all their pieces are there."""
        self._said.add(chunk)
        deltas = (choice.get("delta") or {} for choice in chunk.get("choices") or ())
        return [event for delta in deltas for event in _words(delta)]

    def add_whole(self, completion: Mapping[str, Any]) -> list[Event]:
        """Return the events of a completion that is not streamed."""
        choice = completion["choices"][0]
        message = choice["message"]
        calls = [{**call, "index": i} for i, call in enumerate(message.get("tool_calls") or ())]
        delta = {**message, "tool_calls": calls}
        events = self.add({**completion, "choices": [{**choice, "delta": delta}]})
        self.original = message
        return events

    def finish(self) -> list[ToolCall]:
        """Return the events of the end; the turn is complete."""
        said = self._said.whole()
        self.original = self.original or said
        self._calls = [_call(call) for call in said.get("tool_calls", ())]
        thoughts = next((said[name] for name in REASONING if said.get(name)), "")
        text = said["content"] or said.get("refusal", "")
        self.message = self.spelled(text, thoughts, self._calls)
        return self._calls

    @property
    def ended(self) -> bool:
        """Return whether the endpoint reported a finish reason."""
        return self._said.finish_reason is not None

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """Return the token counts, if the endpoint reported them."""
        return self._said.usage

    @property
    def finish_reason(self) -> str:
        """Return one of OpenAI's reasons, whatever the endpoint calls it."""
        reason = self._said.finish_reason
        if reason in _ENDS:
            return reason
        return "tool_calls" if self._calls else "stop"

    @property
    def stop_string(self) -> str | None:
        """Return the stop string if the endpoint reports it (vLLM does)."""
        return self._said.stop_reason if self._said.stop_reason in self._stop else None

    @property
    def temperature(self) -> float:
        return self._temperature

    @property
    def num_prompt_tokens(self) -> int:
        return (self.usage or {}).get("prompt_tokens") or 0

    @property
    def num_sampled_tokens(self) -> int:
        return (self.usage or {}).get("completion_tokens") or 0

    @property
    def num_cached_tokens(self) -> int:
        return cached_tokens(self.usage) or 0

    def reasoning_tokens(self) -> int:
        details = (self.usage or {}).get("completion_tokens_details") or {}
        return details.get("reasoning_tokens") or 0


def _words(delta: Mapping[str, Any]) -> list[Event]:
    thoughts = (delta[name] for name in REASONING if isinstance(delta.get(name), str))
    thought = next(filter(None, thoughts), "")
    text = text_of(delta.get("content")) or delta.get("refusal") or ""
    return [*([Reasoning(thought)] if thought else []), *([text] if text else [])]


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(function["name"], function["arguments"], malformed=is_malformed(call))
