"""What a family is: one bundled model, and all that distinguishes how it is made."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentgym_rl.core.chat import Message, ToolSpec

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


class Stage(StrEnum):
    """Which demonstrations are wanted."""

    EVEN = "even"
    """Every habit equally often, of any task: texts for the tokenizer."""
    CLEAN = "clean"
    """All right, of training tasks."""
    MIXED = "mixed"
    """With the usual habits, of training tasks."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Lengths and rates of the warm-up."""

    clean_steps: int = 450
    mixed_steps: int = 400
    rows_per_step: int = 32
    tokens_per_row: int = 24
    """Trained tokens of a nominal row; losses are sums over tokens divided by its multiple.
    A mean over each batch would favor short rows, that is guesses, over tool calls."""
    learning_rate: float = 2e-3
    """Of AdamW; Muon's is ten times this."""
    rise_steps: int = 50
    """Linear warm-up of the learning rate."""
    floor: float = 0.05
    """Final learning rate as a fraction of the first."""


@dataclass(frozen=True, slots=True)
class Size:
    """The dimensions of the network."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    feed_forward: int = 384
    context: int = 1024
    """The longest conversation, in tokens."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How text is cut before merging, and what is never merged."""

    splits: tuple[str, ...] = ("[0-9]", "\n")
    """Patterns whose every match is a token of its own."""
    control: tuple[str, ...] = (PAD, TURN_START, TURN_END)
    """Special tokens; a decoder may skip them."""
    tags: tuple[str, ...] = TAGS
    """Tokens of their own, but text: a decoder that skips special tokens keeps them."""
    max_size: int = 640


@dataclass(frozen=True, slots=True)
class Conversation:
    """One demonstration with the tools that it was given."""

    messages: list[Message]
    """From the first message to the last of the assistant."""
    tools: Sequence[ToolSpec]
    num_given: int = 0
    """First messages of which none is trained: a framework's own account of the earlier turns."""


@dataclass(frozen=True, slots=True)
class Family:
    """One bundled model: what it plays, who demonstrates it, and how it is trained."""

    name: str
    env: str
    """Environment id, as in `arl train --env`."""
    tools: Sequence[ToolSpec]
    """Those of the environment, which the chat template writes out."""
    demonstrate: Callable[[random.Random, Stage], list[Message] | Conversation]
    """A whole conversation, from the first message to the last of the assistant."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the environment, with which it is measured."""
    needs_sandboxes: bool = False
    max_tokens: int = 48
    """Of a turn, when it is measured."""
    plan: WarmUp = field(default_factory=WarmUp)
    size: Size = field(default_factory=Size)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)

    def conversation(self, rng: random.Random, stage: Stage) -> Conversation:
        """Return a demonstration with its tools: its own, or those of the family."""
        found = self.demonstrate(rng, stage)
        return found if isinstance(found, Conversation) else Conversation(found, self.tools)
