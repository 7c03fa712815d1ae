"""The description of a family: one bundled model, and the settings with which it is made."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentgym_rl.core import Message, ToolSpec

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


class Stage(StrEnum):
    """The kind of demonstrations."""

    EVEN = "even"
    """The demonstrations with every habit equally often, of any task: texts for the tokenizer."""
    CLEAN = "clean"
    """The right demonstrations, of training tasks."""
    MIXED = "mixed"
    """The demonstrations with the usual habits, of training tasks."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The lengths and rates of the warm-up."""

    clean_steps: int = 450
    mixed_steps: int = 400
    rows_per_step: int = 32
    tokens_per_row: int = 24
    """The trained tokens of a nominal row; losses are sums over tokens divided by its multiple. A
    mean over each batch would favor short rows, that is guesses, over tool calls."""
    learning_rate: float = 2e-3
    """The learning rate of AdamW; Muon's is ten times this."""
    rise_steps: int = 50
    """The steps of linear warm-up of the learning rate."""
    floor: float = 0.05
    """The final learning rate as a fraction of the first."""


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
    """The rules by which text is split before merging, and the tokens that are never merged."""

    splits: tuple[str, ...] = ("[0-9]", "\n")
    """The patterns whose every match is a token of its own."""
    control: tuple[str, ...] = (PAD, TURN_START, TURN_END)
    """The special tokens; a decoder may skip them."""
    tags: tuple[str, ...] = TAGS
    """The tokens that are text: a decoder that skips special tokens keeps them."""
    max_size: int = 640


@dataclass(frozen=True, slots=True)
class Conversation:
    """A demonstration with its tools."""

    messages: list[Message]
    """The messages, from the first to the last of the assistant."""
    tools: Sequence[ToolSpec]
    num_given: int = 0
    """The number of first messages that do not train: a framework's own account of earlier
    turns."""


@dataclass(frozen=True, slots=True)
class Family:
    """A bundled model: its environment, its demonstrations, and its training."""

    name: str
    env: str
    """The environment id, as in `arl train --env`."""
    tools: Sequence[ToolSpec]
    """The tools of the environment, which the chat template writes out."""
    demonstrate: Callable[[random.Random, Stage], list[Message] | Conversation]
    """A function that returns a complete conversation, up to the last message of the assistant."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The options of the environment with which it is measured."""
    needs_sandboxes: bool = False
    max_tokens: int = 48
    """The maximum tokens of a turn, when it is measured."""
    plan: WarmUp = field(default_factory=WarmUp)
    size: Size = field(default_factory=Size)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)

    def conversation(self, rng: random.Random, stage: Stage) -> Conversation:
        """Return a demonstration with its tools: its own, or those of the family."""
        found = self.demonstrate(rng, stage)
        return found if isinstance(found, Conversation) else Conversation(found, self.tools)
