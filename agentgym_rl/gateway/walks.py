"""How far the last conversations of a session were found in its tree, to go on from there.

What was found stays found: each reply on the way was the only one that says the same, and turns
are never taken back. Only a second reply to the same messages could change that, so `Walks` says
nothing any more once there is one that it does not know of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

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
