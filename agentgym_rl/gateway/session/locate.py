"""How far the last conversations of a session were found in its tree, to go on from there.

What was found stays found: each reply on the way was the only one that says the same, and turns
are never taken back. Only a second reply to the same messages could change that, so `Walks` says
nothing any more once there is one that it does not know of.

Which sampled turn an assistant message of a client is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from agentgym_rl.gateway.messages import MessageKey, request_of, text_of

from .nodes import Root, Sampled

Messages = Sequence[Mapping[str, Any]]

_KEPT = 4
"""Conversations that go on at the same time."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The beginning of a conversation, up to the reply `anchor`."""

    tools: Messages | None
    template_kwargs: Mapping[str, Any]
    said: Messages
    """As the client sent it."""
    whole: Messages
    """The same; turns found are what was sampled."""
    root: Root
    anchor: Root | Sampled
    trusted: bool = False
    """Whether the client rewrote the anchor, which was not held against it."""

    def to(
        self, said: Messages, whole: Messages, count: int, anchor: Sampled, trusted: bool
    ) -> Walk:
        """Return the walk that goes on to `anchor`, by the first `count` messages said after it."""
        said, whole = [*self.said, *said[:count]], [*self.whole, *whole[:count]]
        kwargs = self.template_kwargs
        return Walk(self.tools, kwargs, said, whole, self.root, anchor, trusted)

    def begins(
        self, said: Messages, tools: Messages | None, template_kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether it is the beginning of a conversation: by the very same objects."""
        return (
            tools is self.tools
            and template_kwargs is self.template_kwargs
            and len(said) >= len(self.said)
            and all(map(is_, self.said, said))
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A walk that was found to go on: `longer` takes the place of `walk`."""

    walk: Walk
    longer: Walk
    num_cleared: int
    """Of `Walks`, before anything was looked up."""


class Walks:
    """The last walks of one session; a longer one takes the place of its beginning."""

    def __init__(self) -> None:
        self._last: list[Walk] = []
        self._num_cleared = 0

    def clear(self) -> None:
        """A second reply was given to the same messages."""
        self._last = []
        self._num_cleared += 1

    def longest(
        self, said: Messages, tools: Messages | None, template_kwargs: Mapping[str, Any]
    ) -> Walk | None:
        """The longest walk that a conversation begins with."""
        found = (walk for walk in self._last if walk.begins(said, tools, template_kwargs))
        return max(found, key=lambda walk: len(walk.said), default=None)

    @property
    def num_cleared(self) -> int:
        """How often a second reply was given; a walk that was begun before is not kept after."""
        return self._num_cleared

    def keep(self, step: Step) -> None:
        """Remember where a walk went on to, unless a second reply was given meanwhile."""
        if step.num_cleared == self._num_cleared:
            others = [other for other in self._last if other is not step.walk]
            self._last = [*others[1 - _KEPT :], step.longer]


def rewritten(replies: Sequence[Sampled], message: Mapping[str, Any]) -> Sampled | None:
    """The turn whose tool-call ids a message carries that says something else."""
    request = request_of(message)
    return next((node for node in replies if node.request == request), None)


def echoed(
    same: Sequence[Sampled], message: Mapping[str, Any], behind: tuple[MessageKey, ...] | None
) -> tuple[Sampled, bool]:
    """Which of several turns that say the same a client echoes, and whether that is a guess.

    Its tool-call ids tell; else its exact text; else that these messages have followed it before
    (`behind`); else it is the last one that reached the client.
    """
    if len(same) == 1:
        return same[0], False
    request, text = request_of(message), text_of(message.get("content"))
    for node in same:
        if node.request == request:
            return node, False
    exact = [node for node in same if text_of(node.message.get("content")) == text] or same
    if len(exact) == 1:
        return exact[0], False
    followed = [node for node in exact if behind is not None and behind in node.next]
    reached = [node for node in exact if node.delivered]
    return (followed or reached or exact)[-1], True


def until_next_reply(
    messages: Sequence[Mapping[str, Any]], keys: Sequence[MessageKey], index: int
) -> tuple[MessageKey, ...] | None:
    """The keys between the assistant message `index` and the next one; None: there is none."""
    for later in range(index + 1, len(messages)):
        if messages[later]["role"] == "assistant":
            return tuple(keys[index + 1 : later])
    return None


def restored(ours: Mapping[str, Any], echo: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was sampled, under the tool-call ids that the client knows it by."""
    theirs = echo.get("tool_calls") or ()
    if not theirs or len(theirs) != len(ours.get("tool_calls") or ()):
        return ours
    calls = zip(ours["tool_calls"], theirs, strict=True)
    return {**ours, "tool_calls": [{**call, "id": other.get("id")} for call, other in calls]}
