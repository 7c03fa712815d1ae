"""The adaptation of messages to one chat template: clients send OpenAI's form, templates differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentgym_rl.gateway.messages import text_of
from agentgym_rl.gateway.server.intake import has_many_values

from .continuation import OPENING, SENTINEL
from .template import ChatTemplate

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fitting:
    """The message format a template expects, found by rendering; `fit` applies it."""

    string_arguments: bool
    """The flag of a template that writes string arguments as they are; others need objects."""
    short_ids: bool
    """The flag for tool-call ids of nine letters and digits, as Mistral's models need them."""
    systems_anywhere: bool
    """The flag that system messages may stand anywhere; else there is one, at the front."""

    @classmethod
    def of(cls, template: ChatTemplate) -> Fitting:
        """Probe a template."""
        return cls(_takes_strings(template), _wants_short_ids(template), _has_places(template))

    def fit(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages with content, arguments, ids and system messages as required."""
        if self.moves_systems(messages):
            messages = _gathered(messages)
        return [self._fit(message) for message in messages]

    def moves_systems(self, messages: Sequence[Message]) -> bool:
        """Return whether system messages must be merged at the front."""
        late = any(message["role"] == "system" for message in messages[1:])
        return late and not self.systems_anywhere

    def _fit(self, message: Message) -> Message:
        content = message.get("content")
        if not isinstance(content, str):
            message = {**message, "content": None if content is None else text_of(content)}
        if message.get("tool_calls") and not self.string_arguments:
            message = {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}
        return _with_short_ids(message) if self.short_ids else message


def _takes_strings(template: ChatTemplate) -> bool:
    arguments = '{"q":  "x"}'
    try:
        return arguments in template.render([OPENING, _calling("c", arguments)])
    except ValueError:  # a template without tools, or one that requires objects
        return False


def _wants_short_ids(template: ChatTemplate) -> bool:
    if _accepts(template, [OPENING, _calling("call_0_0", {})]):
        return False
    return _accepts(template, [OPENING, _calling(_short_id("call_0_0"), {})])


def _has_places(template: ChatTemplate) -> bool:
    """Return whether a second system message appears, and one behind a reply appears behind it."""
    first, late = ({"role": "system", "content": text} for text in (".", SENTINEL))
    said = {"role": "assistant", "content": "Well."}
    try:
        second = template.render([first, late, OPENING])
        behind = template.render([OPENING, said, late, OPENING])
    except ValueError:
        return False
    return SENTINEL in second and SENTINEL in behind.partition("Well.")[2]


def _accepts(template: ChatTemplate, messages: Sequence[Message]) -> bool:
    try:
        template.render(messages)
    except ValueError:
        return False
    return True


def _calling(id: str, arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "id": id, "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _gathered(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with all system messages merged into one, at the front."""
    systems = [text_of(m.get("content")) for m in messages if m["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(systems)}, *others]


def _parsed(call: Message) -> Message:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str) and has_many_values(arguments):
        return call
    try:
        function["arguments"] = msgspec.json.decode(function["arguments"])
    except (msgspec.DecodeError, TypeError, RecursionError):  # the template gets the text itself
        return call
    return {**call, "function": function}


def _with_short_ids(message: Message) -> Message:
    if id := message.get("tool_call_id"):
        return {**message, "tool_call_id": _short_id(id)}
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**c, "id": _short_id(c.get("id"))} for c in calls]}
    return message


def _short_id(id: Any) -> str:
    """Return nine letters and digits; equal ids stay equal."""
    return hashlib.blake2b(str(id).encode("utf-8", "replace"), digest_size=8).hexdigest()[:9]
