"""The gateway without environments and agents, in front of any engine: OpenAI sessions in, rows of
tokens out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Sampler
from agentgym_rl.gateway import (
    AgentClients,
    ChatFormat,
    Gateway,
    Session,
    SessionRecord,
    SessionSampling,
)
from agentgym_rl.models import resolve_model

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class Recorder:
    """A recorder of conversations: programs talk to an engine through the OpenAI API, and each
    session leaves the exact tokens that were sampled, with log-probs and policy versions.

    >>> import asyncio
    >>> from agentgym_rl import Recorder
    >>> from agentgym_rl.engines.scripted import ScriptedEngine
    >>> async def main():
    ...     engine = ScriptedEngine([[5, 6, 7]])  # or `fleet.router`
    ...     async with Recorder.started(engine, model="bundled/math") as recorder:
    ...         session = recorder.open("first", max_tokens=8)
    ...         messages = [{"role": "user", "content": "Six times seven?"}]
    ...         client = recorder.client(session)
    ...         await client.chat.completions.create(model="policy", messages=messages)
    ...         (row,) = recorder.close(session).rows
    ...         return row.tokens[row.loss_mask].tolist(), row.num_trained
    >>> asyncio.run(main())
    ([5, 6, 7], 3)
    """

    def __init__(self, gateway: Gateway, clients: AgentClients, *, base_url: str) -> None:
        """Store the arguments; `started` makes them."""
        self._gateway = gateway
        self._clients = clients
        self.base_url = base_url
        """The base URL for OpenAI clients; the API key is `session.key`."""

    @classmethod
    @asynccontextmanager
    async def started(
        cls,
        engine: Sampler,
        *,
        model: str,
        max_model_len: int = 4096,
        gateway: GatewayConfig | None = None,
    ) -> AsyncGenerator[Recorder]:
        """Serve a gateway in front of an engine for a context.

        Args:
            engine: An engine, or the `router` of a `Fleet`.
            model: The model whose tokenizer and chat template are used, as in `model.path`.
            max_model_len: The context length in tokens, prompt and reply together.
            gateway: The section `gateway` of the configuration; None: its defaults.

        Raises:
            ConfigError: there is no such model, or its chat template cannot be used.
        """
        config = gateway or GatewayConfig()
        chat = ChatFormat.load(resolve_model(model), config)
        served = Gateway(
            engine, chat, config=config, model_name="policy", max_model_len=max_model_len
        )
        async with served.serve() as base_url, AgentClients(base_url) as clients:
            yield cls(served, clients, base_url=base_url)

    def open(
        self,
        name: str,
        *,
        max_tokens: int,
        temperature: float | None = None,
        seed: int | None = None,
        turn_timeout_s: float = 60.0,
    ) -> Session:
        """Open a session, whose `key` is the API key of one conversation; `temperature` None lets
        the client decide."""
        sampling = SessionSampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
        return self._gateway.open_session(
            sampling=sampling, session_id=name, turn_timeout_s=turn_timeout_s
        )

    def client(self, session: Session) -> AsyncOpenAI:
        """Return an OpenAI client of the session for a program in this process; it need not be
        closed."""
        return self._clients.for_session(session)

    def close(self, session: Session) -> SessionRecord:
        """Close a session and return its record: `rows` of tokens, messages, counters. Idempotent.

        Turns still in flight are aborted and not recorded.
        """
        return self._gateway.close_session(session)
