"""The contract of a check of the input of turns that continue a conversation.

A package registers an instance by an entry point of the group `agentgym_rl.turn_checks`. It sees
some turns while the engine samples them, and counts what it finds.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import load_extensions
from agentgym_rl.gateway.messages import text_of
from agentgym_rl.gateway.template.chat_format import ChatFormat

from .nodes import Context

Pending = asyncio.Future[Sequence[str]] | Future[Sequence[str]]
"""The counters that a check raises, once it has ended."""

_INLINE_CHARS = 4_000
"""The length below which conversations are checked at once, in a millisecond; longer ones are
checked in a thread while the engine samples."""


@dataclass(frozen=True, slots=True)
class Fed:
    """The input from which one turn is sampled."""

    context: Context
    messages: Sequence[Mapping[str, Any]]
    """The messages as the client sent them."""
    tools: Sequence[Mapping[str, Any]] | None
    kwargs: Mapping[str, Any]


class TurnCheck(ABC):
    """A check of the input of turns."""

    counters: ClassVar[Mapping[str, str]] = {}
    """The counters of a session that it may raise, with their descriptions."""

    @abstractmethod
    def draws(self, config: GatewayConfig, name: str) -> bool:
        """Return whether the turn is checked whose session and number `name` consists of."""

    @abstractmethod
    def found(self, chat: ChatFormat, fed: Fed) -> Sequence[str]:
        """Return the names of the counters to raise by 1. A thread may call this."""

    def start(self, chat: ChatFormat, fed: Fed, *, size: int) -> Pending:
        """Begin the check of a turn, which runs even if nothing awaits it. `size`: the number of
        bytes of the request that were read for the first time."""
        chars = sum(len(text_of(m.get("content"))) for m in fed.messages)
        if max(size, chars) < _INLINE_CHARS:
            done: Future[Sequence[str]] = Future()
            done.set_result(self.found(chat, fed))
            return done
        return asyncio.get_running_loop().run_in_executor(None, self.found, chat, fed)


@cache
def turn_checks() -> Sequence[TurnCheck]:
    """Return the checks of all installed packages."""
    return tuple(load_extensions("turn_checks", of=TurnCheck).values())
