"""Calls that are a complete message, or several with ";" between them: Llama 3 and 4.

    {"name": "calculator", "parameters": {"expression": "3*4"}}
    <|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}
    [calculator(expression="3*4"), f()]

Content may come before the tag, or after the last call.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from agentgym_rl.gateway import (
    Event,
    Parser,
    ToolCall,
    Tools,
    any_start,
    malformed,
    parse_object,
    tag_start,
)

from .literals import read_calls

_ATTEMPT = re.compile(r'\{\s*"name"\s*:\s*"[^"\\]*"\s*,\s*"(?:parameters|arguments)"\s*:')
_CALLED = re.compile(r"\[\s*([A-Za-z_][\w.]*)\s*\(")
_LEAD = re.compile(r"\s*")


def _json_call(text: str, *, tagged: bool) -> list[ToolCall] | None:
    call = parse_object(text)
    if call is None and (tagged or _ATTEMPT.match(text)):
        call = malformed(text)
    return None if call is None else [call]


def _python_calls(text: str, *, tagged: bool) -> list[ToolCall] | None:
    calls = read_calls(text)
    if calls is None and (found := _CALLED.match(text)):
        calls = [ToolCall(found[1], text, malformed=True)]
    elif calls is None and tagged:
        calls = [ToolCall("", text, malformed=True)]
    return calls


@dataclass(frozen=True)
class Style:
    """The calls of a family. `tag`: the text that marks them anywhere; `between`, `end`: texts that
    may stand between and after them; `first`: their first bracket; `unquoted`: the marks outside
    strings. `read` returns the calls of a text from a bracket to its end; None for a mere text,
    which neither the tag nor its beginning marks as a call."""

    tag: str
    first: str
    between: str
    end: str
    unquoted: re.Pattern[str]
    read: Callable[..., list[ToolCall] | None]


_QUOTED = {mark: re.compile(rf"{mark}|\\.", re.DOTALL) for mark in ('"', "'")}
"""The marks inside a string, by its quotation mark."""
JSON = Style("<|python_tag|>", "{", ";", "", re.compile(r'["{}]'), _json_call)
_BEGIN, _END = "<|python_start|>", "<|python_end|>"
LLAMA4 = replace(JSON, tag=_BEGIN, end=_END)
PYTHON = Style(_BEGIN, "[", "", _END, re.compile(r"""["'\[\]]"""), _python_calls)


class MessageParser(Parser):
    """A parser of calls, then content; brackets that never close are content."""

    def __init__(self, style: Style, tools: Tools = ()) -> None:
        self.begins = (style.tag,)
        self._style = style
        self._state: Literal["lead", "object", "content"] = "lead"
        self._text = ""
        self._at = 0
        self._lead: list[str] = []  # text before an object: content if it is no call
        self._tagged = False
        self._called = False  # only whitespace and `between` since the last call
        self._may_end = False  # not even that
        self._object: list[str] = []
        self._start = 0
        self._depth = 0
        self._quote = ""

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

    def finish(self, *, ended: bool = False) -> list[Event]:
        rest = "".join((*self._lead, *self._object)) + self._text
        self._text, self._lead, self._object = "", [], []
        rest = rest.lstrip() if self._called else rest
        return [rest] if rest else []

    def _read_lead(self, events: list[Event]) -> bool:
        """Read the text before an object: whitespace, one ";" after a call, the tag."""
        text, start = self._text, self._at
        space = _LEAD.match(text, start)
        self._at = space.end() if space else start
        style = self._style
        if text.startswith(style.first, self._at):
            self._state, self._start = "object", self._at
            self._depth, self._quote, self._object = 0, "", []
            self._lead.append(text[start : self._at])
            return True
        if style.between and self._may_end and text.startswith(style.between, self._at):
            self._at += len(style.between)
            self._may_end = False
        elif style.end and text.startswith(style.end, self._at) and (self._may_end or self._tagged):
            self._at += len(style.end)
            self._tagged = self._may_end = False
            return True
        elif text.startswith(style.tag, self._at):
            self._at += len(style.tag)
            self._tagged = True
        elif self._at < len(text) and not self._may_be_tag():
            self._lead.append(text[start : self._at])
            self._give_up(events)
            return True
        self._lead.append(text[start : self._at])
        return self._at > start

    def _may_be_tag(self) -> bool:
        tags = [tag for tag in (self._style.tag, self._style.end) if tag]
        return any_start(self._text, tags, self._at) == self._at

    def _read_object(self, events: list[Event]) -> bool:
        while True:
            marks = _QUOTED[self._quote] if self._quote else self._style.unquoted
            mark = marks.search(self._text, self._at)
            if mark is None:
                # a backslash waits for the character that it escapes
                waits = bool(self._quote) and self._text.endswith("\\")
                self._at = max(self._at, len(self._text) - waits)
                return False
            self._at = mark.end()
            if mark[0] in _QUOTED:
                self._quote = "" if self._quote else mark[0]
            elif len(mark[0]) == 1:
                self._depth += 1 if mark[0] in "[{" else -1
            if not self._depth:
                break
        text = "".join((*self._object, self._text[self._start : self._at]))
        calls = self._style.read(text, tagged=self._tagged)
        self._object = []
        if calls is None:
            self._lead.append(text)
            self._give_up(events)
            return True
        events += calls
        self._state, self._lead = "lead", []
        self._called = self._may_end = True
        return True

    def _read_text(self, events: list[Event]) -> bool:
        """Read content up to the tag; the whitespace before the tag belongs to the format."""
        tagged = self._text.find(self._style.tag, self._at)
        end = tagged if tagged >= 0 else tag_start(self._text, self._style.tag, self._at)
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
