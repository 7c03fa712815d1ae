"""An episode on somebody else's model: its turns are counted, and no rows come of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from agentgym_rl.gateway.errors import session_closed
from agentgym_rl.gateway.session.session import Session, SessionRecord

from .originals import Originals

_TOKENS_PER_BYTE = 0.25
"""Of English and JSON, about, in today's vocabularies."""


class RelaySession(Session):
    """An episode whose tokens nobody here knows."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.originals = Originals()
        self._answered = 0
        self._cached: int | None = 0
        self._cost_usd: float | None = 0.0
        self._counted_bytes = 0

    @property
    def num_turns(self) -> int:
        return self._answered

    def note(
        self,
        asked: Mapping[str, Any],
        reply: Mapping[str, Any],
        *,
        finish_reason: str | None,
        usage: Mapping[str, Any] | None,
        cost_usd: float | None,
    ) -> None:
        """Count an answered turn, before its reply leaves.

        Raises:
            ApiError: 410, the session was closed meanwhile.
        """
        if self.closed:
            raise session_closed()
        self._answered += 1
        tools = asked.get("tools")
        self._messages = [*asked["messages"], reply]
        self._tools = tools if isinstance(tools, list) else ()
        calls = reply.get("tool_calls") or ()
        self.counters["tool_calls"] += len(calls)
        self.counters["malformed_calls"] += sum(map(is_malformed, calls))
        self.counters["length_turns"] += finish_reason == "length"
        self._cached = _sum(self._cached, cached_tokens(usage))
        self._cost_usd = _sum(self._cost_usd, cost_usd)
        if not usage:
            self.counters["uncounted_turns"] += 1
            return
        self._counted_bytes += _size_bytes(asked)
        self.counters["prompt_tokens"] += usage.get("prompt_tokens") or 0
        self.counters["sampled_tokens"] += usage.get("completion_tokens") or 0

    def estimated_tokens(self, asked: Mapping[str, Any]) -> int:
        """About how many tokens the prompt of a request has: as many to the byte as the endpoint
        counted in this session, or a usual share while it has counted none."""
        counted = self.counters["prompt_tokens"]
        share = counted / self._counted_bytes if counted else _TOKENS_PER_BYTE
        return math.ceil(share * _size_bytes(asked))

    def record(self) -> SessionRecord:
        """With what the endpoint said of every turn."""
        said = {"cached_tokens": self._cached, "cost_usd": self._cost_usd}
        spent = {name: float(value) for name, value in said.items() if value is not None}
        return replace(super().record(), spent=spent if self._answered else {})


def is_malformed(call: Mapping[str, Any]) -> bool:
    """Whether a tool call's arguments are no JSON object."""
    try:
        arguments = msgspec.json.decode(call["function"]["arguments"])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, KeyError, TypeError):
        return True
    return not isinstance(arguments, dict)


def cached_tokens(usage: Mapping[str, Any] | None) -> int | None:
    """Prompt tokens that came from a cache; None: nobody says."""
    details = (usage or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens")


def _sum(total: Any, more: Any) -> Any:
    """None, once something is unknown."""
    return None if total is None or more is None else total + more


def _size_bytes(asked: Mapping[str, Any]) -> int:
    """Of what a prompt is made of."""
    return len(msgspec.json.encode([asked["messages"], asked.get("tools")]))
