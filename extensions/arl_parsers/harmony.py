"""The format of gpt-oss ("harmony"): messages with a channel, and calls with a recipient.

    <|channel|>analysis<|message|>3*4 is 12.<|end|><|start|>assistant<|channel|>commentary
     to=functions.calculator <|constrain|>json<|message|>{"expression": "3*4"}<|call|>

The channel "analysis" is reasoning, and the others are content. Several messages of a kind are
joined by a line break. https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from typing import Literal

from agentgym_rl.gateway import (
    Event,
    Parser,
    Reasoning,
    ToolCall,
    Tools,
    any_start,
    either,
    is_object,
)

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MARKS = (START, CHANNEL, MESSAGE, "<|constrain|>", *_ENDS)
_SEEK = re.compile(either(_MARKS))
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_PREFIX, _ROLE = "functions.", "assistant"
_LONGEST = 256
"""The number of characters of a header; a longer one is a text without any header."""


class HarmonyParser(Parser):
    """A parser of messages. A text that no header precedes is content.

    `tools`: None if calls are not to be read; their arguments are content then. `prompt_end`: the
    end of the prompt, which may hold the beginning of the first header.
    """

    def __init__(self, tools: Tools | None = (), prompt_end: str = "") -> None:
        self._calls = tools is not None
        self._text = ""
        self._at = 0
        self._state: Literal["header", "body"] = "header"
        self._header: list[str] = []
        self._started = False  # the header begins with a role
        self._size = 0  # the number of characters in _header
        self._kind: type[str] | type[Reasoning] | type[ToolCall] = str
        self._name = ""
        self._body: list[str] = []  # the arguments of an open call
        self._with_text: set[type] = set()  # the kinds that have text
        self._new = False  # the message has no text yet
        _, opened, begun = prompt_end.rpartition(START)
        if opened:
            self.feed(begun.removeprefix(_ROLE))

    def feed(self, text: str) -> list[Event]:
        self._text += text
        events: list[Event] = []
        while (mark := _SEEK.search(self._text, self._at)) is not None:
            self._take(self._text[self._at : mark.start()], events)
            self._at = mark.end()
            self._mark(mark[0], events)
        end = any_start(self._text, _MARKS, self._at)
        self._take(self._text[self._at : end], events)
        self._text, self._at = self._text[end:], 0
        return events

    def finish(self, *, ended: bool = False) -> list[Event]:
        events: list[Event] = []
        self._take(self._text, events)
        self._text = ""
        if self._state == "header":
            self._give_up(events)
        elif self._kind is ToolCall:
            if ended or is_object("".join(self._body).strip()):
                self._close(events)
            else:
                self._kind = str
                self._add_text("".join((*self._header, *self._body)), events)
        self._state, self._header, self._body = "header", [], []
        return events

    def _take(self, text: str, events: list[Event]) -> None:
        """Take text between two marks."""
        if not text:
            return
        if self._state == "header":
            room = _LONGEST - self._size
            self._header.append(text[:room])
            self._size += len(text[:room])
            if len(text) > room:
                self._give_up(events)
                self._add_text(text[room:], events)
        elif self._kind is ToolCall:
            self._body.append(text)
        else:
            self._add_text(text, events)

    def _mark(self, mark: str, events: list[Event]) -> None:
        """Take a mark."""
        inside = self._state == "body"
        if mark == MESSAGE and not inside:
            self._open_body()
        elif mark == START or mark in _ENDS or (mark == CHANNEL and inside):
            if inside:
                self._close(events)
            else:
                self._give_up(events)
            self._state, self._started = "header", mark == START
            if mark == CHANNEL:
                self._take(mark, events)
        else:
            self._take(mark, events)

    def _open_body(self) -> None:
        header = "".join(self._header)
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        called = recipient[1] if recipient else ""
        self._state, self._new = "body", True
        self._name = called.removeprefix(_PREFIX)
        self._header.append(MESSAGE)
        self._kind = str
        if called not in ("", "assistant") and self._calls:
            self._kind = ToolCall
        elif channel and channel[1] == "analysis":
            self._kind = Reasoning

    def _close(self, events: list[Event]) -> None:
        """End the message, and expect the next header."""
        if self._kind is ToolCall:
            body = "".join(self._body)
            read = body.strip()
            events.append(ToolCall(self._name, read, malformed=not is_object(read)))
        self._header, self._body, self._size = [], [], 0

    def _give_up(self, events: list[Event]) -> None:
        """Turn a header without a message into content."""
        header = "".join(self._header)
        self._kind, self._new, self._state = str, True, "body"
        self._header, self._size = [], 0
        self._add_text(header.removeprefix(_ROLE) if self._started else header, events)

    def _add_text(self, text: str, events: list[Event]) -> None:
        if self._new and self._kind in self._with_text and text:
            text = "\n" + text
        if text:
            self._new = False
            self._with_text.add(self._kind)
            events.append(Reasoning(text) if self._kind is Reasoning else text)
