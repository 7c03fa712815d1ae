"""An episode on a model served elsewhere: its turns are counted, and it produces no rows.

An agent that speaks Responses or Messages gets a converted reply: ids of our own, thoughts in
blocks. Its endpoint may need its original reply, byte for byte: ids it knows, signed thoughts,
special fields. The original replies are therefore kept, and sent back instead of their converted
form. Agents that speak chat completions keep all this themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from agentgym_rl.gateway.errors import session_closed
from agentgym_rl.gateway.messages import TURN, MessageKey, message_key, request_of
from agentgym_rl.gateway.session.session import Session, SessionRecord
from agentgym_rl.gateway.template.template import REASONING

Message = Mapping[str, Any]
_OURS = {TURN, *REASONING}


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


_TOKENS_PER_BYTE = 0.25
"""The approximate ratio for English and JSON in today's vocabularies."""


class RelaySession(Session):
    """An episode whose tokens are unknown to the gateway."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.originals = Originals()
        self._answered = 0
        self._cached: int | None = 0
        self._cost_usd: float | None = 0.0
        self._counted_bytes = 0

    @property
    def num_turns(self) -> int:
        return self._answered

    def note(
        self,
        asked: Mapping[str, Any],
        reply: Mapping[str, Any],
        *,
        finish_reason: str | None,
        usage: Mapping[str, Any] | None,
        cost_usd: float | None,
    ) -> None:
        """Count an answered turn, before its reply is sent.

        Raises:
            ApiError: 410, the session was closed meanwhile.
        """
        if self.closed:
            raise session_closed()
        self._answered += 1
        tools = asked.get("tools")
        self._messages = [*asked["messages"], reply]
        self._tools = tools if isinstance(tools, list) else ()
        calls = reply.get("tool_calls") or ()
        self.counters["tool_calls"] += len(calls)
        self.counters["malformed_calls"] += sum(map(is_malformed, calls))
        self.counters["length_turns"] += finish_reason == "length"
        self._cached = _sum(self._cached, cached_tokens(usage))
        self._cost_usd = _sum(self._cost_usd, cost_usd)
        if not usage:
            self.counters["uncounted_turns"] += 1
            return
        self._counted_bytes += _size_bytes(asked)
        self.counters["prompt_tokens"] += usage.get("prompt_tokens") or 0
        self.counters["sampled_tokens"] += usage.get("completion_tokens") or 0

    def estimated_tokens(self, asked: Mapping[str, Any]) -> int:
        """Estimate the number of prompt tokens of a request, by the tokens per byte that the
        endpoint has counted in this session, or by a typical ratio before the first count."""
        counted = self.counters["prompt_tokens"]
        share = counted / self._counted_bytes if counted else _TOKENS_PER_BYTE
        return math.ceil(share * _size_bytes(asked))

    def record(self) -> SessionRecord:
        """Return the record, with the usage that the endpoint reported for all turns."""
        said = {"cached_tokens": self._cached, "cost_usd": self._cost_usd}
        spent = {name: float(value) for name, value in said.items() if value is not None}
        return replace(super().record(), spent=spent if self._answered else {})


def is_malformed(call: Mapping[str, Any]) -> bool:
    """Return whether a tool call's arguments are not a JSON object."""
    try:
        arguments = msgspec.json.decode(call["function"]["arguments"])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, KeyError, TypeError):
        return True
    return not isinstance(arguments, dict)


def cached_tokens(usage: Mapping[str, Any] | None) -> int | None:
    """Return the number of prompt tokens from a cache; None if not reported."""
    details = (usage or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens")


def _sum(total: Any, more: Any) -> Any:
    """Add two numbers; None if one of them is unknown."""
    return None if total is None or more is None else total + more


def _size_bytes(asked: Mapping[str, Any]) -> int:
    """Return the size of all that a prompt is made of: the messages and tools."""
    return len(msgspec.json.encode([asked["messages"], asked.get("tools")]))
