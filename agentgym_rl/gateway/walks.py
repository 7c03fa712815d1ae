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


class Walks:
    """The last walks of one session; a longer one takes the place of its beginning."""

    def __init__(self) -> None:
        self._last: list[Walk] = []

    def clear(self) -> None:
        """A second reply was given to the same messages."""
        self._last.clear()

    def longest(
        self, said: Messages, tools: Messages | None, template_kwargs: Mapping[str, Any]
    ) -> Walk | None:
        """The longest walk that a conversation begins with."""
        found = (walk for walk in self._last if walk.begins(said, tools, template_kwargs))
        return max(found, key=lambda walk: len(walk.said), default=None)

    def go_on(
        self,
        walk: Walk,
        said: Messages,
        whole: Messages,
        count: int,
        anchor: Sampled,
        trusted: bool,
    ) -> None:
        """Remember that `walk` goes on to `anchor`, by the first `count` messages said after it."""
        longer = Walk(
            walk.tools,
            walk.template_kwargs,
            [*walk.said, *said[:count]],
            [*walk.whole, *whole[:count]],
            walk.root,
            anchor,
            trusted,
        )
        others = [other for other in self._last if other is not walk]
        self._last = [*others[1 - _KEPT :], longer]
