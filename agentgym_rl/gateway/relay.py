"""The gateway of `arl eval` with a model that somebody else serves: agents' requests go on to it.

Agents see what they see in training: an OpenAI endpoint of their session's, with the session's
sampling parameters. They never see the key. Nothing is recorded that could train.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec

from agentgym_rl.config import GatewayConfig
from agentgym_rl.errors import EngineError

from .app import SessionApp
from .dialects import Dialect
from .dialects.chat import DONE, ChatDialect
from .errors import bad_request, session_closed, unsupported
from .exchange import Exchange
from .server import SessionServer
from .sessions import Session, SessionRecord, SessionTable
from .streamed import StreamedMessage
from .upstream import Upstream

_encode = msgspec.json.Encoder().encode


class RelaySession(Session):
    """An episode whose tokens nobody here knows: turns are counted, and no rows come of them."""

    _answered = 0
    _cached: int | None = 0
    _cost_usd: float | None = 0.0

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
        self.counters["malformed_calls"] += sum(map(_is_malformed, calls))
        self.counters["length_turns"] += finish_reason == "length"
        self._cached = _sum(self._cached, _cached(usage))
        self._cost_usd = _sum(self._cost_usd, cost_usd)
        if not usage:
            self.counters["uncounted_turns"] += 1
            return
        self.counters["prompt_tokens"] += usage.get("prompt_tokens") or 0
        self.counters["sampled_tokens"] += usage.get("completion_tokens") or 0

    def record(self) -> SessionRecord:
        """With what the endpoint said of every turn."""
        said = {"cached_tokens": self._cached, "cost_usd": self._cost_usd}
        spent = {name: float(value) for name, value in said.items() if value is not None}
        return replace(super().record(), spent=spent if self._answered else {})


class Relay(SessionServer):
    """Stands between agents and `upstream`; what it answers is what `upstream` said."""

    def __init__(self, upstream: Upstream, *, config: GatewayConfig) -> None:
        sessions = SessionTable()
        app = _RelayApp(upstream, sessions, config=config, model_name=upstream.model)
        super().__init__(app, sessions, config=config, session_type=RelaySession)


class _RelayApp(SessionApp):
    def __init__(
        self, upstream: Upstream, sessions: SessionTable, *, config: GatewayConfig, model_name: str
    ) -> None:
        super().__init__(sessions, (ChatDialect(),), config=config, model_name=model_name)
        self._upstream = upstream

    async def answer(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        assert isinstance(session, RelaySession)
        asked = _request(body)
        request = self._imposed(session, asked)
        if asked.get("stream"):
            return await self._stream(session, asked, request, exchange)
        data, completion = await self._upstream.whole(request)
        choice = completion["choices"][0]
        session.note(
            asked,
            choice["message"],
            finish_reason=choice.get("finish_reason"),
            usage=completion.get("usage"),
            cost_usd=self._upstream.cost_usd(completion.get("usage")),
        )
        await exchange.whole(data)

    async def _stream(
        self,
        session: RelaySession,
        asked: Mapping[str, Any],
        request: Mapping[str, Any],
        exchange: Exchange,
    ) -> None:
        """Pass chunks on as they come; the end only once the turn is counted."""
        options = asked.get("stream_options") or {}  # an object, says `_request`
        request = {**request, "stream_options": {**options, "include_usage": True}}
        message = StreamedMessage()
        held: list[bytes] = []
        async with aclosing(self._upstream.events(request)) as events:
            async for event in events:
                message.add(event)
                if not (event.get("choices") or options.get("include_usage")):
                    continue  # the token counts, which the agent did not ask for
                held.append(b"data: " + _encode(event) + b"\n\n")
                if message.finish_reason is None:
                    await exchange.events(held.pop())
        if message.finish_reason is None:
            raise EngineError(f"{self._upstream.model} ended a stream without a finish_reason")
        session.note(
            asked,
            message.whole(),
            finish_reason=message.finish_reason,
            usage=message.usage,
            cost_usd=self._upstream.cost_usd(message.usage),
        )
        await exchange.events(b"".join([*held, DONE]), last=True)

    def _imposed(self, session: Session, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The agent's request with the session's sampling parameters above its own."""
        config, policy = self._upstream.config, session.sampling
        request = {**asked, **config.extra_body, "model": self._upstream.model}
        seed = policy.turn_seed(session.next_request())
        for name in config.send:
            if name == "temperature" and policy.temperature is not None:
                request[name] = policy.temperature
            elif name == "seed" and seed is not None:
                request[name] = seed
            elif name in ("max_tokens", "max_completion_tokens"):
                both = (request.pop("max_completion_tokens", None), request.pop("max_tokens", None))
                wanted = [limit for limit in both if isinstance(limit, int)]
                request[name] = min([policy.max_tokens, *wanted])
        return request


def _request(body: bytes) -> dict[str, Any]:
    """What an agent asks; most of it is the endpoint's to judge.

    Raises:
        ApiError: 400.
    """
    try:
        asked = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}") from error
    if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
        raise bad_request("The request body must be a JSON object with an array of messages.")
    if asked.get("n") not in (None, 1):
        raise unsupported("n", "one reply per request; send more requests for more samples")
    if not isinstance(asked.get("stream_options"), dict | None):
        raise bad_request("stream_options must be an object.", param="stream_options")
    return asked


def _cached(usage: Mapping[str, Any] | None) -> int | None:
    """Prompt tokens that came from a cache; None: nobody says."""
    details = (usage or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens")


def _sum(total: Any, more: Any) -> Any:
    """None, once something is unknown."""
    return None if total is None or more is None else total + more


def _is_malformed(call: Mapping[str, Any]) -> bool:
    """Whether a tool call's arguments are no JSON object."""
    try:
        arguments = msgspec.json.decode(call["function"]["arguments"])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, KeyError, TypeError):
        return True
    return not isinstance(arguments, dict)
