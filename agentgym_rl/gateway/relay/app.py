"""The gateway of `arl eval` for a model that is served elsewhere: it forwards agents' requests.

Agents see the same as in training: an endpoint of their own session that speaks their API, with the
session's sampling parameters. The endpoint's key is hidden from them. No training data is recorded.

Chat completions are passed on unchanged, in both directions. The other dialects are converted to
chat completions and back, in the same way as for our own engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core.errors import EngineError
from agentgym_rl.gateway.delivery import deliver, kept_alive
from agentgym_rl.gateway.dialects import Dialect
from agentgym_rl.gateway.dialects.chat import DONE, ChatDialect
from agentgym_rl.gateway.dialects.messages import CountTokens, MessagesDialect
from agentgym_rl.gateway.dialects.responses import ResponsesDialect
from agentgym_rl.gateway.exchange import Exchange
from agentgym_rl.gateway.reply import OnEvents
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.server.gateway import SessionServer
from agentgym_rl.gateway.server.session_app import SessionApp
from agentgym_rl.gateway.session.session import Session
from agentgym_rl.gateway.session.session_table import SessionTable

from .request import imposed, passed_on, translated
from .session import RelaySession
from .turn import RelayedTurn, StreamedMessage
from .upstream import Upstream

_encode = msgspec.json.Encoder().encode
_COUNTED = {"include_usage": True}


@dataclass(frozen=True, slots=True)
class _Asking:
    """A request in progress: the agent's request in chat completions, and the upstream one."""

    session: RelaySession
    asked: Mapping[str, Any]
    request: Mapping[str, Any]


class Relay(SessionServer):
    """A server between agents and `upstream`, whose replies it returns."""

    def __init__(self, upstream: Upstream, *, config: GatewayConfig) -> None:
        sessions = SessionTable()
        app = _RelayApp(upstream, sessions, config=config, model_name=upstream.model)
        super().__init__(app, sessions, config=config, session_type=RelaySession)


class _RelayApp(SessionApp):
    def __init__(
        self, upstream: Upstream, sessions: SessionTable, *, config: GatewayConfig, model_name: str
    ) -> None:
        routes = (ChatDialect(), ResponsesDialect(), MessagesDialect(), CountTokens(_estimate))
        super().__init__(sessions, routes, config=config, model_name=model_name)
        self._upstream = upstream

    async def answer(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        assert isinstance(session, RelaySession)
        if not isinstance(dialect, ChatDialect):
            return await self._translate(session, dialect, body, exchange)
        size = exchange.asked.num_new
        asked = await dialect.reading(body, size, lambda: passed_on(body))
        asking = self._asking(session, asked, session.next_request())
        if not asking.asked.get("stream"):
            return await self._pass_whole(asking, exchange)
        async with kept_alive(exchange, every_s=self._config.keep_alive_s):
            await self._pass_stream(asking, exchange)

    # ------------------------------------------------------------------ other dialects
    async def _translate(
        self, session: RelaySession, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        size = exchange.asked.num_new
        wanted = await dialect.reading(body, size, lambda: dialect.read(session, body))
        asked = translated(wanted, session.originals.restore(wanted.messages))
        number = session.next_request()
        asking = self._asking(session, asked, number)
        temperature = asking.request.get("temperature", 1.0)
        turn = RelayedTurn(session, number, stop=wanted.stop, temperature=temperature)

        async def produce(on_events: OnEvents) -> int:
            if wanted.stream:
                await self._follow(turn, asking, on_events)
            else:
                _, completion = await self._upstream.whole(asking.request)
                await on_events(turn, turn.add_whole(completion))
            await on_events(turn, turn.finish())
            self._note(asking, turn.original, turn.finish_reason, turn.usage)
            session.originals.keep(number, turn.message, turn.original)
            return turn.num_sampled_tokens

        writer = dialect.writer(session, wanted, [turn], model=self._model_name)
        keep_alive_s = self._config.keep_alive_s
        await deliver(exchange, writer, produce, stream=wanted.stream, keep_alive_s=keep_alive_s)

    async def _follow(self, turn: RelayedTurn, asking: _Asking, on_events: OnEvents) -> None:
        """Report a stream as it arrives."""
        streamed = {**asking.request, "stream": True, "stream_options": _COUNTED}
        async with aclosing(self._upstream.events(streamed)) as chunks:
            async for chunk in chunks:
                await on_events(turn, turn.add(chunk))
        if not turn.ended:
            raise self._unfinished()

    # ------------------------------------------------------------------ chat completions
    async def _pass_whole(self, asking: _Asking, exchange: Exchange) -> None:
        data, completion = await self._upstream.whole(asking.request)
        choice, usage = completion["choices"][0], completion.get("usage")
        self._note(asking, choice["message"], choice.get("finish_reason"), usage)
        await exchange.whole(data)

    async def _pass_stream(self, asking: _Asking, exchange: Exchange) -> None:
        """Pass chunks on as they arrive; the end only once the turn is counted."""
        options = asking.asked.get("stream_options") or {}  # an object, checked by `passed_on`
        request = {**asking.request, "stream_options": {**options, **_COUNTED}}
        message = StreamedMessage()
        held: list[bytes] = []
        async with aclosing(self._upstream.events(request)) as events:
            async for event in events:
                message.add(event)
                if not (event.get("choices") or options.get("include_usage")):
                    continue  # the token counts, which the agent did not request
                held.append(b"data: " + _encode(event) + b"\n\n")
                if message.finish_reason is None:
                    await exchange.events(held.pop())
        if message.finish_reason is None:
            raise self._unfinished()
        self._note(asking, message.whole(), message.finish_reason, message.usage)
        await exchange.events(b"".join([*held, DONE]), last=True)

    # ------------------------------------------------------------------ both
    def _asking(self, session: RelaySession, asked: Mapping[str, Any], number: int) -> _Asking:
        config, model = self._upstream.config, self._upstream.model
        request = imposed(asked, config, session.sampling, model=model, number=number)
        return _Asking(session, asked, request)

    def _note(
        self,
        asking: _Asking,
        reply: Mapping[str, Any],
        finish_reason: str | None,
        usage: Mapping[str, Any] | None,
    ) -> None:
        cost_usd = self._upstream.cost_usd(usage)
        asking.session.note(
            asking.asked, reply, finish_reason=finish_reason, usage=usage, cost_usd=cost_usd
        )

    def _unfinished(self) -> EngineError:
        return EngineError(f"{self._upstream.model} ended a stream without a finish_reason")


async def _estimate(session: Session, request: ChatRequest, size: int) -> Mapping[str, Any]:
    """Estimate the prompt tokens without the model's tokenizer; mark the number as estimated."""
    assert isinstance(session, RelaySession)
    asked = translated(request, session.originals.restore(request.messages))
    return {"input_tokens": session.estimated_tokens(asked), "estimated": True}
