"""OpenAI clients for agents in this process: one shared connection pool, one key per client.

The SDK takes half a second to import, so it is imported only when a client is created.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from .retries_and_hangups import NO_RETRIES
from .session.session import Session

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_GRACE_S = 5.0
"""The extra seconds of the client: the gateway ends a late turn itself, with a better message."""
ASLEEP_S = 86_400.0
"""The extra wait where engines may sleep within a turn: then only the gateway may time out."""
_SCALARS = frozenset({str, int, float, bool, type(None)})


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

        self._base = plain_client_type()(
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
            api_key=session.key, timeout=session.longest_turn_s + self._patience_s
        )


@cache
def plain_client_type() -> type[AsyncOpenAI]:
    """Return the SDK's client, which sends the same requests, without the SDK's conversion of chat
    requests that are already plain JSON.

    For every member of every message, the SDK (2.54 to 3.54) tries each type that a message may
    have. This takes a fifth of the CPU time of a process that plays short episodes. A chat request
    needs no renaming, so messages and tools made of dicts, lists and scalars are sent as
    `extra_body`, which the SDK does not convert. Other values (SDK objects, iterators, `omit`) take
    the usual way.
    """
    from openai import AsyncOpenAI
    from openai.resources.chat import AsyncChat, AsyncCompletions

    class Completions(AsyncCompletions):
        async def create(self, **options: Any) -> Any:
            given = {name: options[name] for name in ("messages", "tools") if name in options}
            # The caller's own `extra_body` already takes precedence.
            body = options.get("extra_body")
            if "messages" in given and not body and all(map(_is_plain, given.values())):
                options = {k: v for k, v in options.items() if k != "tools"}
                options |= {"messages": [], "extra_body": given}
            return await super().create(**options)

    class Chat(AsyncChat):
        @cached_property
        def completions(self) -> AsyncCompletions:
            return Completions(self._client)

    class PlainAsyncOpenAI(AsyncOpenAI):
        @cached_property
        def chat(self) -> AsyncChat:
            return Chat(self)

    return PlainAsyncOpenAI


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_is_plain, value.values()))  # pyright: ignore
    if kind is list:
        return all(map(_is_plain, value))  # pyright: ignore
    return kind in _SCALARS
