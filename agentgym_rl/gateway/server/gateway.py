"""The gateway: sessions in, an OpenAI endpoint out, records back."""

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
    """Serves `app` to the agents of the sessions that are opened here.

    `session_type`: what `open_session` makes.
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
        """Sessions open now."""
        return len(self._sessions)

    def open_session(
        self, *, sampling: SessionSampling, session_id: str, turn_timeout_s: float = 60.0
    ) -> Session:
        """A new session; `session.key` is the API key its agent uses.

        `turn_timeout_s` bounds each reply; past it the turn fails as infrastructure.
        """
        session = self._session_type(
            session_id, sampling=sampling, turn_timeout_s=turn_timeout_s, config=self._config
        )
        self._sessions.add(session)
        return session

    def close_session(self, session: Session) -> SessionRecord:
        """Shut the session's key out (410 from now on) and return what it recorded. Idempotent.

        Turns still in flight are aborted and not recorded.
        """
        session.abort()
        self._sessions.remove(session)
        return session.record()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve inside this process while the context is open; yields ".../v1" to use as base_url.

        Leaving it closes connections within two seconds; sessions stay readable.
        """
        async with serving(self.app, host=self._config.host, port=self._config.port) as url:
            yield f"{url}/v1"


class Gateway(SessionServer):
    """Stands between agents, which speak OpenAI's API, and a sampler, which speaks tokens.

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
        """As `/v1/models` has it."""
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
        """Tokens of the prompt that a first request with `messages` and `tools` would make.

        Raises:
            ValueError: the chat template refuses these messages.
        """
        return len(self._chat.prompt(messages, tools or None))
