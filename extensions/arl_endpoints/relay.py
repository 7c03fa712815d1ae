"""The gateway of `arl eval` for a model that is served elsewhere: it forwards agents' requests.

Agents see the same as in training: an endpoint of their own session that speaks their API, with the
session's sampling parameters. The endpoint's key is hidden from them. No training data is recorded.

Chat completions are passed on unchanged, in both directions. The other dialects are converted to
chat completions and back, in the same way as for our own engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from agentgym_rl.config import EndpointConfig, GatewayConfig
from agentgym_rl.core import EngineError
from agentgym_rl.gateway import (
    ChatRequest,
    Dialect,
    Session,
    SessionSampling,
    SessionServer,
    bad_request,
    json_object,
    left_to_session,
    unsupported,
)
from agentgym_rl.gateway.dialects import OnEvents, deliver, kept_alive
from agentgym_rl.gateway.dialects.completions import DONE, ChatDialect
from agentgym_rl.gateway.dialects.formats import Served
from agentgym_rl.gateway.errors import Withheld
from agentgym_rl.gateway.request.client_sampling import Sampling
from agentgym_rl.gateway.request.offered_tools import Tools
from agentgym_rl.gateway.request.reply_form import ANY_OBJECT, ReplyForm
from agentgym_rl.gateway.request.unreadable import LEFT_OUT
from agentgym_rl.gateway.retries_and_hangups import Exchange
from agentgym_rl.runtime import ENGINE_CLOCK

from .odd_replies import ADVICE, OddReplies
from .session import RelayedTurn, RelaySession, StreamedMessage
from .upstream import Upstream

_encode = msgspec.json.Encoder().encode
_COUNTED = {"include_usage": True}
_CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}
"""The parameters of vLLM for a reply that continues the last message; others may refuse them."""


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """A request in progress: the agent's request in chat completions, and the upstream one."""

    session: RelaySession
    incoming: Mapping[str, Any]
    request: Mapping[str, Any]


class Relay(SessionServer):
    """A server between agents and `upstream`, whose replies it returns."""

    session_type = RelaySession
    odd_replies = ADVICE

    def __init__(self, upstream: Upstream, *, config: GatewayConfig) -> None:
        super().__init__(Served(_estimate), config=config, model_name=upstream.model)
        self._upstream = upstream
        self._odd = OddReplies()

    async def answer(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        assert isinstance(session, RelaySession)
        try:
            if isinstance(dialect, ChatDialect):
                await self._pass_on(session, dialect, body, exchange)
            else:
                await self._translate(session, dialect, body, exchange)
        except Withheld as error:
            session.withhold(str(error))
            self._odd.warn("filtered_turns", {"content": str(error)})
            raise

    async def _pass_on(
        self, session: RelaySession, dialect: ChatDialect, body: bytes, exchange: Exchange
    ) -> None:
        size = exchange.identity.num_new
        sampling = self._config.sampling
        incoming, ignored = await dialect.reading(body, size, lambda: _passed_on(body, sampling))
        self.note_ignored(session, ignored)
        forwarded = self._forwarded(session, incoming, session.next_request())
        if not forwarded.incoming.get("stream"):
            return await self._pass_whole(forwarded, exchange)
        async with kept_alive(exchange, every_s=self._config.keep_alive_s):
            await self._pass_stream(forwarded, exchange)

    # ------------------------------------------------------------------ other dialects
    async def _translate(
        self, session: RelaySession, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        size = exchange.identity.num_new
        wanted = await dialect.reading(body, size, lambda: dialect.read(session, body))
        incoming = _translated(wanted, session.originals.restore(wanted.messages))
        self.note_omissions(session, wanted)
        number = session.next_request()
        forwarded = _without_notes(self._forwarded(session, incoming, number))
        temperature = forwarded.request.get("temperature", 1.0)
        turn = RelayedTurn(session, number, stop=wanted.stop, temperature=temperature)

        async def produce(on_events: OnEvents) -> int:
            if wanted.stream:
                await self._follow(turn, forwarded, on_events)
            else:
                _, completion = await self._upstream.whole(forwarded.request)
                await on_events(turn, turn.add_whole(completion))
            await on_events(turn, turn.finish())
            self._note(forwarded, turn.original, turn.streamed.finish_reason, turn.streamed.usage)
            session.originals.keep(number, turn.message, turn.original)
            return turn.num_sampled_tokens

        writer = dialect.writer(session, wanted, [turn], model=self.model_name)
        keep_alive_s = self._config.keep_alive_s
        await deliver(exchange, writer, produce, stream=wanted.stream, keep_alive_s=keep_alive_s)

    async def _follow(self, turn: RelayedTurn, forwarded: _Forwarded, on_events: OnEvents) -> None:
        """Report a stream as it arrives."""
        streamed = {**forwarded.request, "stream": True, "stream_options": _COUNTED}
        async with aclosing(self._upstream.events(streamed)) as chunks:
            async for chunk in chunks:
                forwarded.session.progress_s = ENGINE_CLOCK.time()
                await on_events(turn, turn.add(chunk))
        if turn.streamed.finish_reason is None:
            raise self._unfinished()

    # ------------------------------------------------------------------ chat completions
    async def _pass_whole(self, forwarded: _Forwarded, exchange: Exchange) -> None:
        data, completion = await self._upstream.whole(forwarded.request)
        choice, usage = completion["choices"][0], completion.get("usage")
        self._note(forwarded, choice["message"], choice.get("finish_reason"), usage)
        await exchange.whole(data)

    async def _pass_stream(self, forwarded: _Forwarded, exchange: Exchange) -> None:
        """Pass chunks on as they arrive; the end only once the turn is counted."""
        options = (
            forwarded.incoming.get("stream_options") or {}
        )  # an object, checked by `_passed_on`
        request = {**forwarded.request, "stream_options": {**options, **_COUNTED}}
        message = StreamedMessage()
        held: list[bytes] = []
        async with aclosing(self._upstream.events(request)) as events:
            async for event in events:
                forwarded.session.progress_s = ENGINE_CLOCK.time()
                message.add(event)
                if not (event.get("choices") or options.get("include_usage")):
                    continue  # the token counts, which the agent did not request
                held.append(b"data: " + _encode(event) + b"\n\n")
                if message.finish_reason is None:
                    await exchange.events(held.pop())
        if message.finish_reason is None:
            raise self._unfinished()
        self._note(forwarded, message.whole(), message.finish_reason, message.usage)
        await exchange.events(b"".join([*held, DONE]), last=True)

    # ------------------------------------------------------------------ both
    def _forwarded(
        self, session: RelaySession, incoming: Mapping[str, Any], number: int
    ) -> _Forwarded:
        config, model = self._upstream.config, self._upstream.model
        request = _imposed(incoming, config, session.sampling, model=model, number=number)
        return _Forwarded(session, incoming, request)

    def _note(
        self,
        forwarded: _Forwarded,
        reply: Mapping[str, Any],
        finish_reason: str | None,
        usage: Mapping[str, Any] | None,
    ) -> None:
        cost_usd = self._upstream.cost_usd(usage)
        odd = forwarded.session.note(
            forwarded.incoming, reply, finish_reason=finish_reason, usage=usage, cost_usd=cost_usd
        )
        if odd:
            self._odd.warn(odd, reply)

    def _unfinished(self) -> EngineError:
        return EngineError(f"{self._upstream.model} ended a stream without a finish_reason")


async def _estimate(session: Session, request: ChatRequest, size: int) -> Mapping[str, Any]:
    """Estimate the prompt tokens without the model's tokenizer; mark the number as estimated."""
    assert isinstance(session, RelaySession)
    incoming = _translated(request, session.originals.restore(request.messages))
    return {"input_tokens": session.estimated_tokens(incoming), "estimated": True}


def _without_notes(forwarded: _Forwarded) -> _Forwarded:
    """Return a request without the descriptions of what was left out, which are for people."""
    plain = [{k: v for k, v in m.items() if k != LEFT_OUT} for m in forwarded.request["messages"]]
    return replace(forwarded, request={**forwarded.request, "messages": plain})


def _passed_on(body: bytes, sampling: Sampling) -> tuple[dict[str, Any], frozenset[str]]:
    """Parse a request in chat completions; the endpoint judges most of it. Return the sampling
    parameters that were left out, too."""
    incoming, ignored = left_to_session(json_object(body), sampling)
    if not isinstance(incoming.get("messages"), list):
        raise bad_request("messages must be an array.", param="messages")
    if incoming.get("n") not in (None, 1):
        raise unsupported("n", "one reply per request; send more requests for more samples")
    if not isinstance(incoming.get("stream_options"), dict | None):
        raise bad_request("stream_options must be an object.", param="stream_options")
    return incoming, ignored


def _translated(request: ChatRequest, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return another dialect's request as chat completions, with `messages` as its conversation.

    Parameters for which the endpoint's defaults apply are omitted.
    """
    incoming: dict[str, Any] = {"messages": list(messages)}
    if request.tools:
        incoming["tools"] = list(request.tools)
        incoming |= {} if request.calls else {"tool_choice": "none"}
        incoming |= {"parallel_tool_calls": False} if request.one_call else {}
    incoming |= _held_to(request.form, request.tools or ())
    incoming |= {"top_p": request.top_p} if request.top_p != 1.0 else {}
    incoming |= {"top_k": request.top_k} if request.top_k else {}
    incoming |= {"min_p": request.min_p} if request.min_p else {}
    incoming |= {"stop": list(request.stop)} if request.stop else {}
    incoming |= _CONTINUED if request.continues else {}
    given = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "reasoning_effort": request.template_kwargs.get("reasoning_effort"),
    }
    return incoming | {name: value for name, value in given.items() if value is not None}


def _held_to(form: ReplyForm | None, offered: Tools) -> dict[str, Any]:
    """Return the parameters that constrain the reply; the endpoint applies or refuses them."""
    if form is None:
        return {}
    if form.schema is not None:
        named = {"name": "reply", "schema": form.schema, "strict": True}
        free = form.schema == ANY_OBJECT
        kind = {"type": "json_object"} if free else {"type": "json_schema", "json_schema": named}
        return {"response_format": kind}
    one = {"parallel_tool_calls": False} if form.one_call else {}
    if len(form.tools) == len(offered) and not (form.one_call and len(offered) == 1):
        return {"tool_choice": "required", **one}
    chosen = [{"type": "function", "function": {"name": _name(tool)}} for tool in form.tools]
    if len(chosen) == 1:
        return {"tool_choice": chosen[0], **one}
    allowed = {"mode": "required", "tools": chosen}
    return {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}, **one}


def _name(tool: Mapping[str, Any]) -> str:
    return tool["function"]["name"]


def _imposed(
    incoming: Mapping[str, Any],
    config: EndpointConfig,
    policy: SessionSampling,
    *,
    model: str,
    number: int,
) -> dict[str, Any]:
    """Return the agent's request `number`, with the session's sampling parameters on top."""
    request = {**incoming, **config.extra_body, "model": model}
    seed = policy.turn_seed(number)
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
