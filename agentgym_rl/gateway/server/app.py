"""The OpenAI endpoint of our own engines: renders messages to tokens, samples, and records."""

from __future__ import annotations

from typing import Any

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core.engine import Sampler
from agentgym_rl.gateway.delivery import deliver
from agentgym_rl.gateway.dialects import Dialect
from agentgym_rl.gateway.dialects.chat import ChatDialect
from agentgym_rl.gateway.dialects.completions import CompletionsDialect
from agentgym_rl.gateway.dialects.messages import CountTokens, MessagesDialect
from agentgym_rl.gateway.dialects.responses import ResponsesDialect
from agentgym_rl.gateway.exchange import Exchange
from agentgym_rl.gateway.parsers import readers_of
from agentgym_rl.gateway.reply import OnEvents
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.session.prompts import count_prompt
from agentgym_rl.gateway.session.session import Session
from agentgym_rl.gateway.session.session_table import SessionTable
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gateway.turn import open_turns, sample

from .session_app import SessionApp


class GatewayApp(SessionApp):
    """An app that renders messages to tokens, samples from `sampler`, and records the samples."""

    def __init__(
        self,
        sampler: Sampler,
        chat: ChatFormat,
        sessions: SessionTable,
        *,
        config: GatewayConfig,
        model_name: str,
        max_model_len: int,
    ) -> None:
        routes = (
            ChatDialect(),
            ResponsesDialect(),
            MessagesDialect(),
            CountTokens(self._count),
            CompletionsDialect(chat, max_model_len=max_model_len),
        )
        about = {"rung": chat.rung, "rung_why": chat.why}
        super().__init__(sessions, routes, config=config, model_name=model_name, about_model=about)
        self._sampler = sampler
        self._chat = chat
        self._max_model_len = max_model_len
        self._parsers, self._grammars = readers_of(chat, config)

    async def answer(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        size = exchange.asked.num_new
        request = await dialect.reading(body, size, lambda: dialect.read(session, body))
        turns = await open_turns(
            session,
            request,
            self._chat,
            max_model_len=self._max_model_len,
            parsers=self._parsers,
            grammars=self._grammars,
            size=size,
        )

        async def produce(on_events: OnEvents) -> int:
            await sample(turns, self._sampler, on_events)
            nodes = [turn.commit(is_retry=exchange.asked.is_retry) for turn in turns]
            exchange.on_delivery += [node.note_delivery for node in nodes]
            return sum(turn.num_sampled_tokens for turn in turns)

        writer = dialect.writer(session, request, turns, model=self._model_name)
        keep_alive_s = self._config.keep_alive_s
        await deliver(exchange, writer, produce, stream=request.stream, keep_alive_s=keep_alive_s)

    async def _count(self, session: Session, request: ChatRequest, size: int) -> dict[str, Any]:
        count = await count_prompt(
            session, self._chat, request, max_model_len=self._max_model_len, size=size
        )
        return {"input_tokens": count}
