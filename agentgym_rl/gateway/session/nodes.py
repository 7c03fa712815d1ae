"""The nodes of a session's token tree (`tree` describes how it grows)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgym_rl.core.prompt import Prompt
from agentgym_rl.gateway.messages import MessageKey

ForkCause = Literal[
    "new_root",
    "history_edit",
    "args_edit",
    "think_drop",
    "template",
    "seam",
    "sibling",
    "n_sibling",
    "retry_sibling",
]
"""The reason why a turn does not continue the path before it (see `counters.COUNTERS`)."""


@dataclass(slots=True, eq=False)
class Root:
    """The start of conversations with the same system messages, tools and template arguments."""

    tools: tuple[str, ...] = ()
    """The names of the offered functions."""
    next: dict[tuple[MessageKey, ...], Context] = field(default_factory=dict)
    turns: list[Sampled] = field(default_factory=list)
    """The turns of its conversations, in the order in which they were answered."""


@dataclass(slots=True, eq=False)
class Context:
    """A run of tokens fed to the engine, after those of `base`, or at a prompt's start (None)."""

    root: Root
    base: Sampled | None
    ids: list[int]
    anchor: Root | Sampled
    """The predecessor in the conversation: `base`, unless the tokens had to be rendered anew. Then
    `base` is the last node whose tokens the new ones repeat."""
    cause: ForkCause | None
    replies: list[Sampled] = field(default_factory=list)
    path: Prompt = field(init=False)
    """The exact engine input: every token from the root down to this node."""

    def __post_init__(self) -> None:
        self.path = Prompt(self.ids, before=self.base.path if self.base else None)


@dataclass(frozen=True, slots=True)
class Sample:
    """The engine's output for one turn; the lists have one entry per token.

    While the turn is being sampled, `versions` may lag behind.
    """

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    admitted: list[int]
    """The version known to be served when the token's request was sent."""
    times_s: list[float]
    temperature: float
    constrained: bool = False
    """The flag of a sample that a grammar restricted, in addition to the policy."""


@dataclass(slots=True, eq=False)
class Sampled:
    """An answered turn."""

    context: Context
    turn: int
    """The number of the turn among the session's answered turns, from 0."""
    request: int
    """The number in the ids of its tool calls."""
    sample: Sample
    message: Mapping[str, Any]
    """The assistant message that the client got."""
    key: MessageKey
    next: dict[tuple[MessageKey, ...], Context] = field(default_factory=dict)
    delivered: bool = False
    """The flag of a turn whose complete reply reached a client."""
    path: Prompt = field(init=False)
    """The engine's input and output: every token from the root down to this node."""

    def __post_init__(self) -> None:
        self.path = Prompt(self.sample.ids, before=self.context.path)

    @property
    def ids(self) -> list[int]:
        return self.sample.ids

    @property
    def parent(self) -> Sampled | None:
        """Return the turn before it in the conversation, whether or not it shares its tokens."""
        anchor = self.context.anchor
        return anchor if isinstance(anchor, Sampled) else None

    def note_delivery(self) -> None:
        """Record that a client got the complete reply."""
        self.delivered = True
