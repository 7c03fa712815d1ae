"""An episode on a model served elsewhere: its turns are counted, and it produces no rows.

An agent that speaks Responses or Messages gets a converted reply: ids of our own, thoughts in
blocks. Its endpoint may need its original reply, byte for byte: ids it knows, signed thoughts,
special fields. The original replies are therefore kept, and sent back instead of their converted
form. Agents that speak chat completions keep all this themselves.

The chunks of a stream are joined to one message, in the form that a dialect's writer needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from agentgym_rl.gateway import Event, Reasoning, Reply, Session, SessionRecord, ToolCall
from agentgym_rl.gateway.errors import session_closed
from agentgym_rl.gateway.messages import (
    REASONING,
    TURN,
    MessageKey,
    message_key,
    request_of,
    text_of,
)

from .odd_replies import Odd, oddity

Message = Mapping[str, Any]
_OURS = {TURN, *REASONING}
_TOKENS_PER_BYTE = 0.25
"""The approximate ratio for English and JSON in today's vocabularies."""
_ENDS = ("length", "content_filter")
"""The finish reasons that the endpoint decides, not the reply's own content."""


class Originals:
    """The original replies of one session."""

    def __init__(self) -> None:
        self._by_number: dict[int, tuple[MessageKey, Message]] = {}
        self._by_key: dict[MessageKey, Message] = {}
        self._ids: dict[str, str] = {}

    def keep(self, number: int, shown: Message, reply: Message) -> None:
        """Remember `reply` to a request, which its agent sees as `shown`."""
        ours, theirs = shown.get("tool_calls") or (), reply.get("tool_calls") or ()
        named = [{**call, "id": call.get("id") or own["id"]} for own, call in _pairs(ours, theirs)]
        original = {**reply, "tool_calls": named} if named else reply
        self._ids |= {own["id"]: call["id"] for own, call in _pairs(ours, named)}
        key = message_key(shown)
        self._by_number[number] = key, original
        self._by_key[key] = original

    def restore(self, messages: Sequence[Message]) -> list[Message]:
        """Return a conversation in the endpoint's original form.

        A reply that the agent rewrote stays as rewritten, without thoughts, which only the endpoint
        that wrote them can read.
        """
        return [self._restored(message) for message in messages]

    def _restored(self, message: Message) -> Message:
        if message["role"] == "tool":
            id = message["tool_call_id"]
            return {**message, "tool_call_id": self._ids.get(id, id)}
        if message["role"] != "assistant":
            return message
        return self._original(message) or self._cleaned(message)

    def _original(self, message: Message) -> Message | None:
        """Find the original reply. Ids decide if several replies have the same content."""
        key, number = message_key(message), request_of(message)
        if number is not None and number in self._by_number:
            known, original = self._by_number[number]
            return original if known == key else None
        return self._by_key.get(key)

    def _cleaned(self, message: Message) -> Message:
        kept = {name: value for name, value in message.items() if name not in _OURS}
        if calls := message.get("tool_calls"):
            named = [{**call, "id": self._ids.get(call["id"], call["id"])} for call in calls]
            kept["tool_calls"] = named
        return kept


def _pairs(ours: Sequence[Message], theirs: Sequence[Message]) -> list[tuple[Message, Message]]:
    return list(zip(ours, theirs, strict=True))


class RelaySession(Session):
    """An episode whose tokens are unknown to the gateway."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.originals = Originals()
        self._answered = 0
        self._withheld = ""
        self._cached: int | None = 0
        self._cost_usd: float | None = 0.0
        self._counted_bytes = 0

    @property
    def num_turns(self) -> int:
        return self._answered

    def note(
        self,
        request: Mapping[str, Any],
        reply: Mapping[str, Any],
        *,
        finish_reason: str | None,
        usage: Mapping[str, Any] | None,
        cost_usd: float | None,
    ) -> Odd | None:
        """Count an answered turn, before its reply is sent; return the kind of an odd reply.

        Raises:
            ApiError: 410, the session was closed meanwhile.
        """
        if self.closed:
            raise session_closed()
        self._answered += 1
        tools = request.get("tools")
        self._messages = [*request["messages"], reply]
        self._tools = tools if isinstance(tools, list) else ()
        calls = reply.get("tool_calls") or ()
        self.counters["tool_calls"] += len(calls)
        self.counters["malformed_calls"] += sum(map(_is_malformed, calls))
        self.counters["length_turns"] += finish_reason == "length"
        if odd := oddity(request, reply, finish_reason):
            self.counters[odd] += 1
        self._cached = _sum(self._cached, _cached_tokens(usage))
        self._cost_usd = _sum(self._cost_usd, cost_usd)
        self._count_usage(request, usage)
        return odd

    def withhold(self, error: str) -> None:
        """Count a turn whose reply a content filter withholds; the first error stays."""
        self._answered += 1
        self.counters["filtered_turns"] += 1
        self._withheld = self._withheld or error

    def _count_usage(self, request: Mapping[str, Any], usage: Mapping[str, Any] | None) -> None:
        if not usage:
            self.counters["uncounted_turns"] += 1
            return
        self._counted_bytes += _size_bytes(request)
        self.counters["prompt_tokens"] += usage.get("prompt_tokens") or 0
        self.counters["sampled_tokens"] += usage.get("completion_tokens") or 0

    def estimated_tokens(self, request: Mapping[str, Any]) -> int:
        """Estimate the number of prompt tokens of a request, by the tokens per byte that the
        endpoint has counted in this session, or by a typical ratio before the first count."""
        counted = self.counters["prompt_tokens"]
        share = counted / self._counted_bytes if counted else _TOKENS_PER_BYTE
        return math.ceil(share * _size_bytes(request))

    def record(self) -> SessionRecord:
        """Return the record, with the usage that the endpoint reported for all turns."""
        reported = {"cached_tokens": self._cached, "cost_usd": self._cost_usd}
        spent = {name: float(value) for name, value in reported.items() if value is not None}
        spent = spent if self._answered else {}
        return replace(super().record(), spent=spent, withheld=self._withheld)


def _is_malformed(call: Mapping[str, Any]) -> bool:
    """Return whether a tool call's arguments are not a JSON object."""
    try:
        arguments = msgspec.json.decode(call["function"]["arguments"])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, KeyError, TypeError):
        return True
    return not isinstance(arguments, dict)


def _cached_tokens(usage: Mapping[str, Any] | None) -> int | None:
    """Return the number of prompt tokens from a cache; None if not reported."""
    details = (usage or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens")


def _sum(total: Any, more: Any) -> Any:
    """Add two numbers; None if one of them is unknown."""
    return None if total is None or more is None else total + more


def _size_bytes(request: Mapping[str, Any]) -> int:
    """Return the size of the contents of a prompt: the messages and tools."""
    return len(msgspec.json.encode([request["messages"], request.get("tools")]))


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
        self.temperature = temperature
        self.streamed = StreamedMessage()
        """The chunks so far."""
        self._calls: list[ToolCall] = []

    def add(self, chunk: Mapping[str, Any]) -> list[Event]:
        """Return the events of a chunk. Calls come at the end, when all their pieces are there."""
        self.streamed.add(chunk)
        deltas = (choice.get("delta") or {} for choice in chunk.get("choices") or ())
        return [event for delta in deltas for event in _text_events(delta)]

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
        message = self.streamed.whole()
        self.original = self.original or message
        self._calls = [_call(call) for call in message.get("tool_calls", ())]
        thoughts = next((message[name] for name in REASONING if message.get(name)), "")
        text = message["content"] or message.get("refusal", "")
        self.message = self.spelled(text, thoughts, self._calls)
        return self._calls

    @property
    def finish_reason(self) -> str:
        """Return one of OpenAI's reasons, whatever the endpoint calls it."""
        reason = self.streamed.finish_reason
        if reason in _ENDS:
            return reason
        return "tool_calls" if self._calls else "stop"

    @property
    def stop_string(self) -> str | None:
        """Return the stop string if the endpoint reports it (vLLM does)."""
        return self.streamed.stop_reason if self.streamed.stop_reason in self._stop else None

    @property
    def num_prompt_tokens(self) -> int:
        return (self.streamed.usage or {}).get("prompt_tokens") or 0

    @property
    def num_sampled_tokens(self) -> int:
        return (self.streamed.usage or {}).get("completion_tokens") or 0

    @property
    def num_cached_tokens(self) -> int:
        return _cached_tokens(self.streamed.usage) or 0

    def reasoning_tokens(self) -> int:
        details = (self.streamed.usage or {}).get("completion_tokens_details") or {}
        return details.get("reasoning_tokens") or 0


def _text_events(delta: Mapping[str, Any]) -> list[Event]:
    thoughts = (delta[name] for name in REASONING if isinstance(delta.get(name), str))
    thought = next(filter(None, thoughts), "")
    text = text_of(delta.get("content")) or delta.get("refusal") or ""
    return [*([Reasoning(thought)] if thought else []), *([text] if text else [])]


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(function["name"], function["arguments"], malformed=_is_malformed(call))
