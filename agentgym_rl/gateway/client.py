"""OpenAI clients for agents in this process: one shared connection pool, one key per client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange import NO_RETRIES
from .session.session import Session

if TYPE_CHECKING:  # the SDK takes half a second to import
    from openai import AsyncOpenAI

_GRACE_S = 5.0
"""The extra seconds of the client: the gateway ends a late turn itself, with a better message."""
ASLEEP_S = 86_400.0
"""The extra wait where engines may sleep within a turn: then only the gateway may time out."""


class AgentClients:
    """A factory of the agents' clients; an async context manager that owns their connections.

    Building a client with its own pool costs about 20 ms, with a shared one 0.01 ms. The
    aiohttp transport takes about 15 % less CPU per call than the SDK's default. Clients never
    retry: a turn must not be sampled twice without the agent's knowledge.
    """

    def __init__(self, base_url: str, *, patience_s: float = _GRACE_S) -> None:
        """Create the factory. `patience_s`: the seconds a client waits beyond a turn's limit."""
        self._base_url = base_url
        self._patience_s = patience_s
        self._base: AsyncOpenAI | None = None

    async def __aenter__(self) -> AgentClients:
        import openai

        from .plain_client import PlainAsyncOpenAI

        self._base = PlainAsyncOpenAI(
            base_url=self._base_url,
            api_key="replaced-for-each-session",
            max_retries=0,
            default_headers={NO_RETRIES: "true"},
            # the gateway is this process: proxies of the environment do not apply
            http_client=openai.DefaultAioHttpClient(trust_env=False),
        )
        _ = self._base.chat.completions  # a first use imports for 50 ms: not in an episode
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._base is not None:
            await self._base.close()
            self._base = None

    def for_session(self, session: Session) -> AsyncOpenAI:
        """Return a client whose key opens only `session`. It need not be closed."""
        assert self._base is not None, "use AgentClients as an async context manager"
        return self._base.with_options(
            api_key=session.key, timeout=session.turn_timeout_s + self._patience_s
        )
