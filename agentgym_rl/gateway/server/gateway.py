"""The gateway: it opens sessions, serves them an OpenAI endpoint, and returns their records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core.engine import Sampler
from agentgym_rl.gateway.session.sampling import SessionSampling
from agentgym_rl.gateway.session.session import Session, SessionRecord
from agentgym_rl.gateway.session.session_table import SessionTable
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.runtime.http_server import App, serving

from .app import GatewayApp
from .session_app import SessionApp


class SessionServer:
    """A server of `app` for the agents of the sessions opened here.

    `session_type`: the type that `open_session` creates.
    """

    def __init__(
        self,
        app: SessionApp,
        sessions: SessionTable,
        *,
        config: GatewayConfig,
        session_type: type[Session] = Session,
    ) -> None:
        self.app: App = app
        self._sessions = sessions
        self._config = config
        self._session_type = session_type

    @property
    def num_sessions(self) -> int:
        """Return the number of open sessions."""
        return len(self._sessions)

    def open_session(
        self, *, sampling: SessionSampling, session_id: str, turn_timeout_s: float = 60.0
    ) -> Session:
        """Open a new session; `session.key` is the API key of its agent.

        `turn_timeout_s` limits each reply; a later turn fails as infrastructure.
        """
        session = self._session_type(
            session_id, sampling=sampling, turn_timeout_s=turn_timeout_s, config=self._config
        )
        self._sessions.add(session)
        return session

    def close_session(self, session: Session) -> SessionRecord:
        """Close the session to its key (410 from now on) and return its record. Idempotent.

        Turns still in flight are aborted and not recorded.
        """
        session.abort()
        self._sessions.remove(session)
        return session.record()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve in this process while the context is open; yield ".../v1", the clients' base_url.

        The exit closes connections within two seconds; sessions stay readable.
        """
        async with serving(self.app, host=self._config.host, port=self._config.port) as url:
            yield f"{url}/v1"


class Gateway(SessionServer):
    """A gateway between agents, which speak OpenAI's API, and a sampler, which speaks tokens.

    `max_model_len`: context length in tokens, prompt and reply together.
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
        self._chat = chat
        self.model_name = model_name
        """The name in `/v1/models`."""
        sessions = SessionTable()
        app = GatewayApp(
            sampler,
            chat,
            sessions,
            config=config,
            model_name=model_name,
            max_model_len=max_model_len,
        )
        super().__init__(app, sessions, config=config)

    def count_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> int:
        """Count the tokens of the prompt for a first request with `messages` and `tools`.

        Raises:
            ValueError: the chat template refuses these messages.
        """
        return len(self._chat.prompt(messages, tools or None))
