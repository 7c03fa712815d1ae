"""The format of Llama 3: the complete message is a call, or several with ";" between them.

    {"name": "calculator", "parameters": {"expression": "3*4"}}
    <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}

Content may come before the tag, or after the last call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from .hermes import NAME
from .lark import Lark
from .parser import Event, Parser, ToolCall, tag_start

_TAG = "<|python_tag|>"
_ATTEMPT = re.compile(r'\{\s*"name"\s*:\s*"[^"\\]*"\s*,\s*"(?:parameters|arguments)"\s*:')
_UNQUOTED = re.compile(r'["{}]')
_QUOTED = re.compile(r'"|\\.', re.DOTALL)
_LEAD = re.compile(r"\s*")
_NOTHING = msgspec.Raw()


class _Call(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = _NOTHING
    arguments: msgspec.Raw = _NOTHING


_decoder = msgspec.json.Decoder(_Call)


def parse_object(text: str, *, tagged: bool) -> ToolCall | None:
    """Return the call that an object spells. Return None for a mere object: neither the tag nor its
    beginning marks it as a call."""
    try:
        call = _decoder.decode(text)
        arguments = bytes(call.arguments or call.parameters).decode()
        if arguments.startswith("{"):
            return ToolCall(call.name, arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # malformed, see below
        pass
    if not tagged and not _ATTEMPT.match(text):
        return None
    found = NAME.search(text)
    return ToolCall(found[1] if found else "", text, malformed=True)


def call_grammar(lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
    """Return the expression of a call of one function, in `lark`."""
    head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters": '
    return f"{lark.exactly(head)} {lark.json(parameters)} {lark.exactly('}')}"


class Llama3JsonParser(Parser):
    """A parser of calls, then content; an object that never closes is content."""

    begins = _TAG

    def __init__(self) -> None:
        self._state: Literal["lead", "object", "content"] = "lead"
        self._text = ""
        self._at = 0
        self._lead: list[str] = []  # text before an object: content if it is no call
        self._tagged = False
        self._called = False  # only whitespace and ";" since the last call
        self._separated = False
        self._object: list[str] = []
        self._start = 0
        self._depth = 0
        self._quoted = False

    def feed(self, text: str) -> list[Event]:
        self._text += text
        self._at = self._start = 0
        events: list[Event] = []
        steps = {"lead": self._read_lead, "object": self._read_object, "content": self._read_text}
        while steps[self._state](events):
            pass
        if self._state == "object":
            self._object.append(self._text[self._start : self._at])
        self._text = self._text[self._at :]
        return events

    def finish(self) -> list[Event]:
        rest = "".join((*self._lead, *self._object)) + self._text
        self._text, self._lead, self._object = "", [], []
        rest = rest.lstrip() if self._called else rest
        return [rest] if rest else []

    def _read_lead(self, events: list[Event]) -> bool:
        """Read the text before an object: whitespace, one ";" after a call, the tag."""
        text, start = self._text, self._at
        space = _LEAD.match(text, start)
        self._at = space.end() if space else start
        if text.startswith(";", self._at) and self._called and not self._separated:
            self._at += 1
            self._separated = True
        elif text.startswith(_TAG, self._at):
            self._at += len(_TAG)
            self._tagged = True
        elif text.startswith("{", self._at):
            self._state, self._start = "object", self._at
            self._depth, self._quoted, self._object = 0, False, []
        elif self._at < len(text) and tag_start(text, _TAG, self._at) != self._at:
            self._lead.append(text[start : self._at])
            self._give_up(events)
            return True
        self._lead.append(text[start : self._at])
        return self._at > start or self._state == "object"

    def _read_object(self, events: list[Event]) -> bool:
        while True:
            mark = (_QUOTED if self._quoted else _UNQUOTED).search(self._text, self._at)
            if mark is None:
                # a backslash waits for the character that it escapes
                waits = self._quoted and self._text.endswith("\\")
                self._at = max(self._at, len(self._text) - waits)
                return False
            self._at = mark.end()
            if mark[0] == '"':
                self._quoted = not self._quoted
            elif mark[0] in "{}":
                self._depth += 1 if mark[0] == "{" else -1
            if not self._depth:
                break
        text = "".join((*self._object, self._text[self._start : self._at]))
        call = parse_object(text, tagged=self._tagged)
        self._object = []
        if call is None:
            self._lead.append(text)
            self._give_up(events)
            return True
        events.append(call)
        self._state, self._lead = "lead", []
        self._called, self._separated = True, False
        return True

    def _read_text(self, events: list[Event]) -> bool:
        """Read content up to the tag; the whitespace before the tag belongs to the format."""
        tagged = self._text.find(_TAG, self._at)
        end = tagged if tagged >= 0 else tag_start(self._text, _TAG, self._at)
        piece = self._text[self._at : end]
        shown = piece.rstrip()
        if shown:
            events.append("".join((*self._lead, shown)))
            self._lead = []
        self._lead.append(piece[len(shown) :])
        self._at = end
        if tagged >= 0:
            self._state = "lead"
        return tagged >= 0

    def _give_up(self, events: list[Event]) -> None:
        """Turn the held text into content, because no call follows."""
        held = "".join(self._lead)
        shown = (held.lstrip() if self._called else held).rstrip()
        if shown:
            events.append(shown)
        self._lead = [] if self._called and not shown else [held[len(held.rstrip()) :]]
        self._state, self._tagged, self._called = "content", False, False
