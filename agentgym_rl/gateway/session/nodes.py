"""What a session's token tree is made of (`tree` says how it grows)."""

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
"""Why a turn does not continue the path before it (`counters.COUNTERS` has the words)."""


@dataclass(slots=True, eq=False)
class Root:
    """Where conversations with the same system messages, tools and template arguments begin."""

    tools: tuple[str, ...] = ()
    """Names of the functions offered."""
    next: dict[tuple[MessageKey, ...], Context] = field(default_factory=dict)
    turns: list[Sampled] = field(default_factory=list)
    """Those of its conversations, in the order they were answered."""


@dataclass(slots=True, eq=False)
class Context:
    """Tokens fed to the engine. They follow those of `base`, or open a prompt (None)."""

    root: Root
    base: Sampled | None
    ids: list[int]
    anchor: Root | Sampled
    """What it follows in the conversation; `base`, unless the tokens had to be rendered anew: then
    `base` is as far as the new ones repeat the old."""
    cause: ForkCause | None
    replies: list[Sampled] = field(default_factory=list)
    path: Prompt = field(init=False)
    """The exact engine input: every token from the top down to here."""

    def __post_init__(self) -> None:
        self.path = Prompt(self.ids, before=self.base.path if self.base else None)


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
    constrained: bool = False
    """Whether a grammar decided what could be sampled, beside the policy."""


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
    path: Prompt = field(init=False)
    """The engine's input and output: every token from the top down to here."""

    def __post_init__(self) -> None:
        self.path = Prompt(self.sample.ids, before=self.context.path)

    @property
    def ids(self) -> list[int]:
        return self.sample.ids

    @property
    def parent(self) -> Sampled | None:
        """The turn before it in the conversation, whether or not it stands on its tokens."""
        anchor = self.context.anchor
        return anchor if isinstance(anchor, Sampled) else None

    def note_delivery(self) -> None:
        """A client got the whole reply."""
        self.delivered = True
