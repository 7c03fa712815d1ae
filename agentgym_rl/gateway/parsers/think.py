"""The parser of thoughts before the answer, in the format of Qwen3 and DeepSeek.

    <think>
    3*4 is 12.
    </think>

    The answer is 12.

Some templates open the thought themselves, at the end of the prompt; the reply begins inside it.
"""

from __future__ import annotations

import re
from typing import Literal

from .parser import Event, Parser, Reasoning, ToolCall, tag_start

OPEN, CLOSE = "<think>", "</think>"
_NOT_SPACE = re.compile(r"\S")


class ThinkParser(Parser):
    """A parser of leading reasoning; it passes the rest to `inner`.

    Whitespace next to the tags belongs to the format. A thought that never closes is reasoning to
    its end. However, if calls follow in it (models forget the close), the first call ends the
    thought. Text from the beginning of a call is therefore held back until the thought closes or
    the reply ends.

    `opened`: the reply begins inside a thought.
    """

    def __init__(self, inner: Parser, *, opened: bool) -> None:
        self._inner = inner
        self._opened = opened
        self._state: Literal["start", "thought", "call", "answer", "content"] = "start"
        self._text = ""
        self._begun = False  # whether the thought has text
        self._held: list[str] = []  # whitespace; after the beginning of a call, all text

    def feed(self, text: str) -> list[Event]:
        if self._state == "content":
            return self._inner.feed(text)
        self._text += text
        events: list[Event] = []
        steps = {
            "start": self._read_start,
            "thought": self._read_thought,
            "call": self._read_call,
            "answer": self._read_answer,
        }
        while self._state in steps and steps[self._state](events):
            pass
        return events

    def finish(self) -> list[Event]:
        rest, self._held, self._text = "".join((*self._held, self._text)), [], ""
        if self._state == "call":
            return self._finish_call(rest)
        events: list[Event] = []
        if self._state == "thought" or (self._state == "start" and self._opened):
            events += [Reasoning(rest)] if rest.strip() else []
        elif self._state == "start":
            events += self._inner.feed(rest)
        return events + self._inner.finish()

    def _read_start(self, events: list[Event]) -> bool:
        """Decide whether the reply begins with a thought; return True once this is known."""
        found = _NOT_SPACE.search(self._text)
        at = found.start() if found else len(self._text)
        self._held.append(self._text[:at])
        self._text = self._text[at:]
        if len(self._text) < len(OPEN) and OPEN.startswith(self._text):
            return False
        if self._opened or self._text.startswith(OPEN):
            self._text = self._text.removeprefix(OPEN)
            self._state = "thought"
        else:
            self._state = "content"
            events += self._inner.feed("".join((*self._held, self._text)))
            self._text = ""
        self._held = []
        return True

    def _read_thought(self, events: list[Event]) -> bool:
        """Read the thought up to its close or a call's beginning; return True if there is one."""
        text = self._text if self._begun else self._text.lstrip()
        tags = [tag for tag in (CLOSE, self._inner.begins) if tag]
        tag = min((tag for tag in tags if tag in text), key=text.index, default="")
        end = text.index(tag) if tag else min(tag_start(text, tag) for tag in tags)
        shown = text[:end].rstrip()
        if shown:
            self._begun = True
            events.append(Reasoning("".join((*self._held, shown))))
            self._held = []
        self._held.append(text[len(shown) : end])
        self._text = text[end:].removeprefix(CLOSE) if tag == CLOSE else text[end:]
        if tag:
            self._state = "answer" if tag == CLOSE else "call"
        if tag == CLOSE:
            self._held = []
        return bool(tag)

    def _read_call(self, events: list[Event]) -> bool:
        thought, closed, rest = self._text.partition(CLOSE)
        end = len(thought) if closed else tag_start(thought, CLOSE)
        self._held.append(thought[:end])
        self._text = rest if closed else thought[end:]
        if closed:
            events.append(Reasoning("".join(self._held).rstrip()))
            self._held = []
            self._state = "answer"
        return bool(closed)

    def _finish_call(self, rest: str) -> list[Event]:
        events = self._inner.feed(rest) + self._inner.finish()
        if any(isinstance(event, ToolCall) for event in events):
            return events
        return [Reasoning(rest)]

    def _read_answer(self, events: list[Event]) -> bool:
        """Skip the whitespace after a thought; return True at its end."""
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._state = "content"
        events += self._inner.feed(self._text)
        self._text = ""
        return True
