"""The parser of thoughts before the answer, and the registry of their tags: the group
`agentgym_rl.thoughts` of entry points, in which installed packages register those of families.

    <think>
    3*4 is 12.
    </think>

    The answer is 12.

Some templates open the thought themselves, at the end of the prompt; the reply begins inside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentgym_rl.core import Ordered

from .parser import Event, Parser, Reasoning, ToolCall, any_start

THOUGHTS = "thoughts"
"""The group of entry points."""


@dataclass(frozen=True)
class Thoughts(Ordered):
    """The tags around a thought.

    A member of the group: the spellings of each tag, the usual one first; a template is known by
    the first spelling of the close. `always`: replies begin inside a thought, unless the prompt has
    closed it, even if neither opens it.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    always: bool = False
    order: int = Ordered.order

    def opened(self, prompt_end: str) -> bool:
        """Return whether a reply after this end of a prompt begins inside a thought."""
        end = prompt_end.rstrip()
        return end.endswith(self.opens) or (self.always and not end.endswith(self.closes))


THINK = Thoughts(("<think>",), ("</think>",), order=10)
_NOT_SPACE = re.compile(r"\S")


class ThinkParser(Parser):
    """A parser of leading reasoning; it passes the rest to `inner`.

    Whitespace next to the tags belongs to the format. A thought that never closes is reasoning to
    its end. However, if calls follow in it (models forget the close), the first call ends the
    thought. Text from the beginning of a call is therefore held back until the thought closes or
    the reply ends.

    `opened`: the reply begins inside a thought.
    """

    def __init__(self, inner: Parser, *, opened: bool, thoughts: Thoughts = THINK) -> None:
        self._inner = inner
        self._opened = opened
        self._opens = thoughts.opens
        self._closes = thoughts.closes
        self._tags = (*thoughts.closes, *inner.begins)
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

    def finish(self, *, ended: bool = False) -> list[Event]:
        rest, self._held, self._text = "".join((*self._held, self._text)), [], ""
        if self._state == "call":
            return self._finish_call(rest, ended=ended)
        events: list[Event] = []
        if self._state == "thought" or (self._state == "start" and self._opened):
            events += [Reasoning(rest)] if rest.strip() else []
        elif self._state == "start":
            events += self._inner.feed(rest)
        return events + self._inner.finish(ended=ended)

    def _read_start(self, events: list[Event]) -> bool:
        """Decide whether the reply begins with a thought; return True once this is known."""
        found = _NOT_SPACE.search(self._text)
        at = found.start() if found else len(self._text)
        self._held.append(self._text[:at])
        self._text = self._text[at:]
        tag = next((tag for tag in self._opens if self._text.startswith(tag)), "")
        if not tag and any_start(self._text, self._opens) == 0:
            return False
        if self._opened or tag:
            self._text = self._text[len(tag) :]
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
        tag, end = _first(text, self._tags)
        shown = text[:end].rstrip()
        if shown:
            self._begun = True
            events.append(Reasoning("".join((*self._held, shown))))
            self._held = []
        self._held.append(text[len(shown) : end])
        if tag and tag in self._closes:
            self._state, self._held = "answer", []
            self._text = text[end + len(tag) :]
        else:
            self._state = "call" if tag else self._state
            self._text = text[end:]
        return bool(tag)

    def _read_call(self, events: list[Event]) -> bool:
        tag, end = _first(self._text, self._closes)
        self._held.append(self._text[:end])
        self._text = self._text[end + len(tag) :]
        if tag:
            events.append(Reasoning("".join(self._held).rstrip()))
            self._held = []
            self._state = "answer"
        return bool(tag)

    def _finish_call(self, rest: str, *, ended: bool) -> list[Event]:
        events = self._inner.feed(rest) + self._inner.finish(ended=ended)
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


def _first(text: str, tags: Sequence[str]) -> tuple[str, int]:
    """Return the first of these tags in a text, and its index; if there is none, "" and the index
    where one may begin."""
    found = [tag for tag in tags if tag in text]
    if not found:
        return "", any_start(text, tags)
    tag = min(found, key=text.index)
    return tag, text.index(tag)
