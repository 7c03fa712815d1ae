"""A session's token tree: which messages were said, and the exact tokens behind them.

    Root(tools) ─ Context ─ Sampled ─ Context ─ Sampled      a pure conversation: one path
                       └─── Sampled ─ …                      asked again, or history edited: a fork

Contexts hold tokens the engine was fed (prompts, tool output, template glue), Sampled nodes the
tokens it answered with. A node holds only what it adds; the tokens from the top of a path to a
node are exactly what the engine saw and sampled. Nodes are keyed by messages, never by text, and
never change once added, so concurrent turns of a session need no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from .messages import MessageKey, message_key, request_of

ForkCause = Literal["sibling", "history_edit", "args_edit", "new_root", "template"]
"""Why a turn does not continue the path before it: the same messages asked again; an earlier
message rewritten; a sampled tool call rewritten; other tools or another conversation; a template
whose turns are not local."""


@dataclass(slots=True, eq=False)
class Root:
    """Where conversations with one set of tools begin."""

    next: dict[tuple[MessageKey, ...], Context] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Context:
    """Tokens fed to the engine. They follow those of `base`, or open a prompt (None)."""

    base: Sampled | None
    ids: list[int]
    anchor: Root | Sampled
    """What it follows in the conversation; `base` unless the tokens had to be rendered anew."""
    cause: ForkCause | None
    replies: list[Sampled] = field(default_factory=list)

    def path(self) -> list[int]:
        """The exact engine input: every token from the top down to here."""
        parts: list[list[int]] = [self.ids]
        base = self.base
        while base is not None:
            parts += (base.ids, base.context.ids)
            base = base.context.base
        return list(chain.from_iterable(reversed(parts)))


@dataclass(frozen=True, slots=True)
class Sample:
    """What the engine returned for one turn; the lists have one entry per token.

    While the turn is being sampled, `versions` may lag behind.
    """

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    admitted: list[int]
    """The version known to serve when the token's request was sent."""
    times_s: list[float]
    temperature: float


@dataclass(slots=True, eq=False)
class Sampled:
    """One answered turn."""

    context: Context
    turn: int
    """Counts the session's answered turns from 0."""
    request: int
    """The number its tool-call ids carry."""
    sample: Sample
    message: Mapping[str, Any]
    """The assistant message as the client got it."""
    key: MessageKey
    next: dict[tuple[MessageKey, ...], Context] = field(default_factory=dict)
    delivered: bool = False
    """Whether a client got the whole reply."""

    @property
    def ids(self) -> list[int]:
        return self.sample.ids

    def note_delivery(self) -> None:
        """A client got the whole reply."""
        self.delivered = True


@dataclass(frozen=True, slots=True)
class Place:
    """Where a conversation stands: `tail` are the messages after the last sampled turn found."""

    anchor: Root | Sampled
    tail: list[Mapping[str, Any]]
    tail_keys: tuple[MessageKey, ...]
    edited: ForkCause | None
    """Set when an assistant message is not what was sampled."""

    @property
    def known(self) -> Context | None:
        """The context, when just these messages were asked before."""
        return self.anchor.next.get(self.tail_keys)


class Tree:
    """All turns of one session."""

    def __init__(self) -> None:
        self._roots: dict[str, Root] = {}
        self.turns: list[Sampled] = []

    def locate(self, tools: str, messages: Sequence[Mapping[str, Any]]) -> Place:
        """Follow `messages` down the tree as far as they are what was said and sampled."""
        anchor: Root | Sampled = self._roots.setdefault(tools, Root())
        edited: ForkCause | None = None
        tail: list[Mapping[str, Any]] = []
        keys: list[MessageKey] = []
        for message in messages:
            key = message_key(message)
            if message["role"] == "assistant":
                context = anchor.next.get(tuple(keys))
                found = _reply(context, message, key)
                if found is not None:
                    anchor, edited, tail, keys = found, None, [], []
                    continue
                edited = self._edit(context, message)
            tail.append(message)
            keys.append(key)
        return Place(anchor, tail, tuple(keys), edited)

    def extend(self, place: Place, ids: list[int], *, base: Sampled | None) -> Context:
        """Add the tokens of `place`'s tail, standing on `base` or opening a prompt."""
        cause = place.edited
        if cause is None and base is None:
            cause = "template" if isinstance(place.anchor, Sampled) else "new_root"
        return place.anchor.next.setdefault(
            place.tail_keys, Context(base=base, ids=ids, anchor=place.anchor, cause=cause)
        )

    def commit(
        self, context: Context, sample: Sample, message: Mapping[str, Any], *, request: int
    ) -> tuple[Sampled, ForkCause | None]:
        """Add an answered turn; and why it forks, if it does."""
        cause = self._fork_cause(context)
        node = Sampled(context, len(self.turns), request, sample, message, message_key(message))
        self.turns.append(node)
        context.replies.append(node)
        return node, cause

    def leaves(self) -> list[Sampled]:
        """The last turn of each path, in the order they were sampled.

        A reply that no client got, and that nothing was built on, is no part of the episode.
        """
        counted, extended = self._counted()
        return [node for node in self.turns if node.turn in counted - extended]

    @property
    def num_lost(self) -> int:
        """Turns that are on no path."""
        return len(self.turns) - len(self._counted()[0])

    def _counted(self) -> tuple[set[int], set[int]]:
        """Turns that are on a path, and those of them with another turn after them."""
        counted: set[int] = set()
        extended: set[int] = set()
        for node in reversed(self.turns):  # a turn comes before those that stand on it
            if node.delivered or node.turn in extended:
                counted.add(node.turn)
                if node.context.base is not None:
                    extended.add(node.context.base.turn)
        return counted, extended

    def _fork_cause(self, context: Context) -> ForkCause | None:
        if not self.turns:
            return None
        if context.replies:
            return "sibling"
        if context.cause is None:
            others = context.anchor.next.values()
            return "history_edit" if any(other.replies for other in others) else None
        return context.cause

    @staticmethod
    def _edit(context: Context | None, message: Mapping[str, Any]) -> ForkCause:
        """Our own call in its own place, but rewritten; else any other history."""
        request = request_of(message)
        replies = context.replies if context else []
        ours = request is not None and any(node.request == request for node in replies)
        return "args_edit" if ours else "history_edit"


def _reply(context: Context | None, message: Mapping[str, Any], key: MessageKey) -> Sampled | None:
    """The sampled turn a client echoes: the one whose tool-call ids it carries, else the last."""
    same = [node for node in context.replies if node.key == key] if context else []
    request = request_of(message)
    return next((node for node in same if node.request == request), same[-1] if same else None)
