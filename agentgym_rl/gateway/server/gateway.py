"""The gateway: the server of sessions for a sampler of tokens, such as our own engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Sampler
from agentgym_rl.gateway.dialects import Dialect, OnEvents, deliver
from agentgym_rl.gateway.dialects.formats import Served
from agentgym_rl.gateway.parsers import readers_of
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.retries_and_hangups import Exchange
from agentgym_rl.gateway.session.prompts import count_prompt
from agentgym_rl.gateway.session.session import Session
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gateway.turn import open_turns, sample

from .session_server import SessionServer


class Gateway(SessionServer):
    """A gateway between agents, which use OpenAI's API, and a sampler, which takes and returns
    tokens.

    Messages are rendered to tokens, and samples are recorded. `max_model_len`: context length in
    tokens, prompt and reply together.
    """

    def __init__(
        self,
        sampler: Sampler,
        chat: ChatFormat,
        *,
        config: GatewayConfig,
        model_name: str,
        max_model_len: int,
    ) -> None:
        served = Served(self._count, chat, max_model_len)
        about = {"rung": chat.rung, "rung_why": chat.why}
        super().__init__(served, config=config, model_name=model_name, about_model=about)
        self._sampler = sampler
        self._chat = chat
        self._max_model_len = max_model_len
        self._parsers, self._grammars = readers_of(chat, config)

    def count_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> int:
        """Count the tokens of the prompt for a first request with `messages` and `tools`.

        Raises:
            ValueError: the chat template refuses these messages.
        """
        return len(self._chat.prompt(messages, tools or None))

    async def answer(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        size = exchange.identity.num_new
        request = await dialect.reading(body, size, lambda: dialect.read(session, body))
        turns = await open_turns(
            session,
            request,
            self._chat,
            max_model_len=self._max_model_len,
            parsers=self._parsers,
            grammars=self._grammars,
            size=size,
            sampler=self._sampler,
        )
        session.tree.name(turns[0].root, exchange.identity.lineage)
        request = turns[0].request
        self.note_omissions(session, request)

        async def produce(on_events: OnEvents) -> int:
            await sample(turns, self._sampler, on_events)
            nodes = [turn.commit(is_retry=exchange.identity.is_retry) for turn in turns]
            exchange.on_delivery += [node.note_delivery for node in nodes]
            return sum(turn.num_sampled_tokens for turn in turns)

        writer = dialect.writer(session, request, turns, model=self.model_name)
        keep_alive_s = self._config.keep_alive_s
        await deliver(exchange, writer, produce, stream=request.stream, keep_alive_s=keep_alive_s)

    def progress_s(self, session: Session) -> tuple[float, float]:
        return self._sampler.progress_s(session.id)

    async def _count(self, session: Session, request: ChatRequest, size: int) -> dict[str, Any]:
        count = await count_prompt(
            session, self._chat, request, max_model_len=self._max_model_len, size=size
        )
        return {"input_tokens": count}
