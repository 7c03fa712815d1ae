"""Replies as their endpoint wrote them, sent back to it instead of what a dialect made of them.

An agent that speaks Responses or Messages gets a reply in other words: ids of our own, thoughts
in blocks. Its endpoint may want back what it wrote, to the byte: ids that it would know, signed
thoughts, fields that only it has. In chat completions agents have all that themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.gateway.messages import TURN, MessageKey, message_key, request_of
from agentgym_rl.gateway.template.template import REASONING

Message = Mapping[str, Any]
_OURS = {TURN, *REASONING}


class Originals:
    """Those of one session."""

    def __init__(self) -> None:
        self._by_number: dict[int, tuple[MessageKey, Message]] = {}
        self._by_key: dict[MessageKey, Message] = {}
        self._ids: dict[str, str] = {}

    def keep(self, number: int, shown: Message, reply: Message) -> None:
        """Remember `reply` to a request, of which its agent sees `shown`."""
        ours, theirs = shown.get("tool_calls") or (), reply.get("tool_calls") or ()
        named = [{**call, "id": call.get("id") or own["id"]} for own, call in _pairs(ours, theirs)]
        original = {**reply, "tool_calls": named} if named else reply
        self._ids |= {own["id"]: call["id"] for own, call in _pairs(ours, named)}
        key = message_key(shown)
        self._by_number[number] = key, original
        self._by_key[key] = original

    def restore(self, messages: Sequence[Message]) -> list[Message]:
        """A conversation as its endpoint knows it.

        A reply that the agent rewrote is what it is now, without thoughts, which only who wrote
        them can read.
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
        """Ids tell where several replies say the same."""
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
