"""One thing asked for: the words, the calls that do it, and the fact to be told."""

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
    """What a request leaves open: nobody can know it, so it must be asked for."""

    among: frozenset[str]
    """The numbers of all that may be meant: who has seen them knows that it is open."""
    after: int
    """Calls that show them: then a perfect agent asks."""
    question: str
    reply: str


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked for. Its last call is what does it, or shows what was asked."""

    text: str
    calls: tuple[GoldCall, ...]
    fact: str = ""
    """Where the last result shows what is to be said: a pattern with one group."""
    refused: bool = False
    """The rules forbid it, so nothing changes, and the refusal's number is to be said."""
    touches: frozenset[object] = frozenset()
    """What no other goal of the request may be about, lest their order matters."""
    ask: Ask | None = None
