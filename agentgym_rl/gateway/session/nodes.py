"""The nodes of a session's token tree (`tree.py`), which never change once they are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgym_rl.core import Choices, Prompt, RoutedTokens
from agentgym_rl.gateway.messages import MessageKey

Messages = Sequence[Mapping[str, Any]]
SiblingOf = Literal["n", "retry"]
_Sibling = Literal["sibling", "n_sibling", "retry_sibling"]
_Fork = Literal[
    "new_root", "history_edit", "summary", "args_edit", "think_drop", "template", "seam"
]
ForkCause = _Fork | _Sibling
"""The reason why a turn does not continue the path before it (see `session.COUNTERS`)."""
Lineage = Literal["", "main", "untrained"]
"""The name that a client gives to a lineage: "" is none, "main" the main one, "untrained" one that
does not train."""
_OF_IDS = "ids"
"""The root of prompts that are not conversations."""


@dataclass(slots=True, eq=False)
class Root:
    """The start of conversations with the same system messages, tools and template arguments."""

    tools: tuple[str, ...] = ()
    """The names of the offered functions."""
    next: dict[tuple[MessageKey, ...], Context] = field(default_factory=dict)
    trains: bool = True
    """Whether the conversations train; a client may clear it, for a simulated user's conversation,
    for example."""
    turns: list[Sampled] = field(default_factory=list)
    """The turns of its conversations, in the order in which they were answered."""


@dataclass(slots=True, eq=False)
class Context:
    """The tokens fed to the engine after those of `base`, or at a prompt's start (None)."""

    root: Root
    base: Sampled | None
    ids: list[int]
    anchor: Root | Sampled
    """The predecessor in the conversation: `base`, unless the tokens had to be rendered anew. Then
    `base` is the last node whose tokens the new ones repeat."""
    cause: ForkCause | None
    quoted: Sampled | None = None
    """The turn whose text the client put in place of earlier messages, as a summary."""
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
    """Whether a grammar restricted the sample, in addition to the policy."""
    choices: Choices | None = None
    """The tokens that the grammar allowed at each token; None: not restricted, or not known."""
    experts: list[RoutedTokens] = field(default_factory=list[RoutedTokens])
    """The experts that the engine has reported, for tokens of the complete path down to the turn's
    end."""


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
    """The assistant message that was sent to the client."""
    key: MessageKey
    next: dict[tuple[MessageKey, ...], Context] = field(default_factory=dict)
    delivered: bool = False
    """Whether the complete reply reached a client."""
    path: Prompt = field(init=False)
    """The engine's input and output: every token from the root down to this node."""

    def __post_init__(self) -> None:
        self.path = Prompt(self.sample.ids, before=self.context.path)

    @property
    def ids(self) -> list[int]:
        return self.sample.ids

    @property
    def parent(self) -> Sampled | None:
        """Return the previous turn of the conversation, even if this turn does not build on its
        tokens. For a conversation that begins with a summary, this is the turn that wrote the
        summary."""
        if self.context.quoted is not None:
            return self.context.quoted
        anchor = self.context.anchor
        return anchor if isinstance(anchor, Sampled) else None

    def chain(self) -> list[Sampled]:
        """Return the turns whose tokens precede this one's, from the root on, and this turn
        last."""
        found, node = list[Sampled](), self
        while node is not None:
            found.append(node)
            node = node.context.base
        return found[::-1]

    @property
    def num_routed(self) -> int:
        """Return the number of leading tokens of the path whose experts are known: all but the
        last, or none. The next turn requests the missing ones from the engine."""
        return len(self.path) - 1 if self.sample.experts else 0

    def note_delivery(self) -> None:
        """Record that the complete reply reached a client."""
        self.delivered = True
