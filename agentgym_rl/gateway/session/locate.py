"""The place of a conversation in its session's tree.

The search for the sampled turn that a client's assistant message echoes is remembered for a
session's last conversations, to continue there. A cached result stays valid: each reply on the way
was the only one with its content, and turns are never removed. Only a second reply to the same
messages could change that. `Walks` therefore drops everything when there is one, and rejects
searches that began before it.
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
"""The number of conversations that go on at the same time."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The beginning of a conversation, up to the reply `anchor`."""

    tools: Messages | None
    template_kwargs: Mapping[str, Any]
    said: Messages
    """The messages as the client sent them."""
    whole: Messages
    """The same messages, where the turns found are as sampled."""
    root: Root
    anchor: Root | Sampled
    trusted: bool = False
    """The flag that the client rewrote the anchor, and the edit was accepted."""

    def to(
        self, said: Messages, whole: Messages, count: int, anchor: Sampled, trusted: bool
    ) -> Walk:
        """Return the walk extended to `anchor`, by the first `count` messages of `said`."""
        said, whole = [*self.said, *said[:count]], [*self.whole, *whole[:count]]
        kwargs = self.template_kwargs
        return Walk(self.tools, kwargs, said, whole, self.root, anchor, trusted)

    def begins(
        self, said: Messages, tools: Messages | None, template_kwargs: Mapping[str, Any]
    ) -> bool:
        """Return whether a conversation begins with this walk, compared by object identity."""
        return (
            tools is self.tools
            and template_kwargs is self.template_kwargs
            and len(said) >= len(self.said)
            and all(map(is_, self.said, said))
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A walk that was extended: `longer` replaces `walk`."""

    walk: Walk
    longer: Walk
    num_cleared: int
    """The value of `Walks.num_cleared` before the search."""


class Walks:
    """The last walks of one session; a longer one replaces its beginning."""

    def __init__(self) -> None:
        self._last: list[Walk] = []
        self._num_cleared = 0

    def clear(self) -> None:
        """Drop all walks, because the same messages got a second reply."""
        self._last = []
        self._num_cleared += 1

    def longest(
        self, said: Messages, tools: Messages | None, template_kwargs: Mapping[str, Any]
    ) -> Walk | None:
        """Return the longest walk with which a conversation begins."""
        found = (walk for walk in self._last if walk.begins(said, tools, template_kwargs))
        return max(found, key=lambda walk: len(walk.said), default=None)

    @property
    def num_cleared(self) -> int:
        """Return the number of second replies; a walk that began before the last is not kept."""
        return self._num_cleared

    def keep(self, step: Step) -> None:
        """Remember the extension of a walk, unless a second reply was given meanwhile."""
        if step.num_cleared == self._num_cleared:
            others = [other for other in self._last if other is not step.walk]
            self._last = [*others[1 - _KEPT :], step.longer]


def rewritten(replies: Sequence[Sampled], message: Mapping[str, Any]) -> Sampled | None:
    """Return the turn whose tool-call ids a message carries although its content differs."""
    request = request_of(message)
    return next((node for node in replies if node.request == request), None)


def echoed(
    same: Sequence[Sampled], message: Mapping[str, Any], behind: tuple[MessageKey, ...] | None
) -> tuple[Sampled, bool]:
    """Return which of several equal turns a client echoes, and whether that is a guess.

    The tool-call ids decide; else the exact text; else a turn that the next messages (`behind`)
    have followed before; else the last turn that reached the client.
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
    """Return the keys between the assistant message `index` and the next one; None if none."""
    for later in range(index + 1, len(messages)):
        if messages[later]["role"] == "assistant":
            return tuple(keys[index + 1 : later])
    return None


def restored(ours: Mapping[str, Any], echo: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sampled message, with the tool-call ids by which the client knows it."""
    theirs = echo.get("tool_calls") or ()
    if not theirs or len(theirs) != len(ours.get("tool_calls") or ()):
        return ours
    calls = zip(ours["tool_calls"], theirs, strict=True)
    return {**ours, "tool_calls": [{**call, "id": other.get("id")} for call, other in calls]}
