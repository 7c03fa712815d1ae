"""The SDK's client, spared its work on chat requests that are plain JSON as they are.

For every member of every message, the SDK (2.54 to 3.54) tries each type that a message may have:
a fifth of the CPU time of a process that plays short episodes. Nothing of a chat request has to be
renamed, so messages and tools made of dicts, lists and scalars travel as `extra_body`, which the
SDK sends as it is. Others (its own objects, iterators, `omit`) go the usual way.

OpenAI clients for agents that run in this process: one connection pool, one key each.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI
from openai.resources.chat import AsyncChat, AsyncCompletions

from agentgym_rl.gateway.session.session import Session

from .exchange import NO_RETRIES

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_SCALARS = frozenset({str, int, float, bool, type(None)})


class PlainAsyncOpenAI(AsyncOpenAI):
    """Sends what `AsyncOpenAI` sends."""

    @cached_property
    def chat(self) -> AsyncChat:
        return _Chat(self)


class _Chat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _Completions(self._client)


class _Completions(AsyncCompletions):
    async def create(self, **options: Any) -> Any:
        given = {name: options[name] for name in ("messages", "tools") if name in options}
        # What a caller puts there has the last word already.
        body = options.get("extra_body")
        if "messages" in given and not body and all(_plain(value) for value in given.values()):
            options = {k: v for k, v in options.items() if k != "tools"}
            options |= {"messages": [], "extra_body": given}
        return await super().create(**options)


def _plain(value: object) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_plain, value.values()))  # pyright: ignore
    if kind is list:
        return all(map(_plain, value))  # pyright: ignore
    return kind in _SCALARS


_GRACE_S = 5.0
"""The gateway ends a late turn itself, and says so better; the client waits a little longer."""
ASLEEP_S = 86_400.0
"""Patience where engines may sleep for any time within a turn: then the gateway alone is to say."""


class AgentClients:
    """Makes the client each agent is given; an async context manager that owns their connections.

    Building a client with a pool of its own costs about 20 ms, sharing one 0.01 ms; the aiohttp
    transport takes about 15 % less CPU a call than the SDK's default. Clients never retry: a
    turn must not be sampled twice behind the agent's back.
    """

    def __init__(self, base_url: str, *, patience_s: float = _GRACE_S) -> None:
        """`patience_s`: how much longer than a turn may take each client waits."""
        self._base_url = base_url
        self._patience_s = patience_s
        self._base: AsyncOpenAI | None = None

    async def __aenter__(self) -> AgentClients:
        import openai

        from .client import PlainAsyncOpenAI

        self._base = PlainAsyncOpenAI(
            base_url=self._base_url,
            api_key="replaced-for-each-session",
            max_retries=0,
            default_headers={NO_RETRIES: "true"},
            # the gateway is this process: proxies of the environment have no part in it
            http_client=openai.DefaultAioHttpClient(trust_env=False),
        )
        _ = self._base.chat.completions  # imported on first use: 50 ms that no episode should wait
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._base is not None:
            await self._base.close()
            self._base = None

    def for_session(self, session: Session) -> AsyncOpenAI:
        """A client whose key opens `session` and nothing else. Need not be closed."""
        assert self._base is not None, "use AgentClients as an async context manager"
        return self._base.with_options(
            api_key=session.key, timeout=session.turn_timeout_s + self._patience_s
        )
