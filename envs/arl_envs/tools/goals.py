"""The goals of a request: the words, the calls that fulfil them, and the facts to report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GoldCall:
    """A tool call of a perfect agent."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """An open part of a request: the agent cannot know it, so it must ask."""

    among: frozenset[str]
    """The numbers of all candidates: an agent that has seen them knows that the part is open."""
    after: int
    """The number of calls that show the candidates, after which a perfect agent asks."""
    question: str
    reply: str


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of a request. Its last call fulfils the goal, or shows the requested fact."""

    text: str
    calls: tuple[GoldCall, ...]
    fact: str = ""
    """The pattern, with one group, of the fact to report in the last result."""
    refused: bool = False
    """The refusal: the rules forbid the goal, nothing changes, and its number must be reported."""
    touches: frozenset[object] = frozenset()
    """The objects that no other goal of the request may touch, so that their order is free."""
    ask: Ask | None = None
