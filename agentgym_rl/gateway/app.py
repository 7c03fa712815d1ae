"""The OpenAI endpoint as a bare ASGI callable.

    POST the path of a dialect    streamed or not; the API key names the session
    POST the path of a question   answered at once
    GET  /v1/models, /v1/models/NAME, /health, /openapi.json

Clients that cannot set a key put it into the path: /s/KEY/v1/chat/completions.

A turn is recorded before the bytes that end its reply leave, so that whatever a client saw whole
is in the record. A turn whose client hangs up first goes on for `gateway.disconnect_grace_s`, for
the client may ask again; then it is aborted and leaves only a count.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any

import msgspec

from agentgym_rl.asgi import Receive, Scope, Send, reply
from agentgym_rl.config import GatewayConfig
from agentgym_rl.engine import Sampler
from agentgym_rl.errors import ContextLengthError, EngineError

from .chat import ChatFormat
from .delivery import deliver
from .dialects import Dialect, Question, Route
from .dialects.chat import ChatDialect
from .dialects.completions import CompletionsDialect
from .dialects.messages import CountTokens, MessagesDialect
from .dialects.responses import ResponsesDialect
from .errors import (
    ApiError,
    bad_request,
    engine_failed,
    session_closed,
    too_busy,
    turn_timed_out,
    wrong_method,
)
from .exchange import Asked, ClientGone, Exchange
from .intake import body_of, key_of
from .openapi import document
from .parsers import for_model, grammars_for
from .prompts import count_prompt
from .reply import OnEvents
from .requests import ChatRequest
from .sessions import Session, SessionTable
from .turn import open_turns, sample

_log = logging.getLogger(__name__)

_DESCRIPTION = "/openapi.json"


class SessionApp(ABC):
    """Answers the requests of `sessions`; where the replies come from is `answer`."""

    def __init__(
        self,
        sessions: SessionTable,
        routes: tuple[Route, ...],
        *,
        config: GatewayConfig,
        model_name: str,
        about_model: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._sessions = sessions
        self._routes: Mapping[str, Route] = {route.path: route for route in routes}
        self._config = config
        self._model_name = model_name
        self._about_model = about_model
        self._num_requests = 0

    @abstractmethod
    async def answer(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        """Answer a request body: whole, or with events.

        Raises:
            ApiError: what the agent is told.
            EngineError, TimeoutError: infrastructure failed.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "serve the gateway with lifespan and websockets off"
        path, key = _address(scope)
        route = self._routes.get(path) if scope["method"] == "POST" else None
        send = _named(send, Route.request_id if route is None else route.request_id)
        try:
            if route is not None:
                await self._post(route, key, scope, receive, send)
            else:
                await reply(send, 200, self._get(scope["method"], path))
        except ApiError as error:
            body = msgspec.json.encode(error.body) if route is None else route.error(error)
            await reply(send, error.status, body, headers=error.headers)
        except ConnectionError:
            _log.debug("a client hung up before its reply was complete")

    def _get(self, method: str, path: str) -> bytes:
        model = {"id": self._model_name, "object": "model", "owned_by": "agentgym-rl", "created": 0}
        model |= self._about_model
        routes = {
            "/health": {},
            "/v1/models": {"object": "list", "data": [model]},
            f"/v1/models/{self._model_name}": model,
        }
        if path in self._routes:
            raise wrong_method(method, path, allowed="POST")
        if path != _DESCRIPTION and path not in routes:
            there_are = [f"POST {path}" for path in self._routes] + [f"GET {p}" for p in routes]
            raise ApiError(
                404,
                f"No route {method} {path}; there are {', '.join(there_are)}.",
                code="not_found",
            )
        if method != "GET":
            raise wrong_method(method, path, allowed="GET")
        if path == _DESCRIPTION:
            return msgspec.json.encode(document(self._routes, model=self._model_name))
        return msgspec.json.encode(routes[path])

    async def _post(
        self, route: Route, key: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        session = self._sessions.authenticate(key)
        body = await body_of(receive, limit_bytes=self._config.max_body_bytes)
        if isinstance(route, Dialect):
            await self._turn(route, session, body, scope, receive, send)
        elif isinstance(route, Question):
            with self._admitted(session):
                answer = await self._at_once(route, session, body)
            await reply(send, 200, answer)

    async def _at_once(self, question: Question, session: Session, body: bytes) -> bytes:
        with _blame(session):
            async with asyncio.timeout(session.turn_timeout_s):
                return await question.answer(session, body)

    async def _turn(
        self,
        dialect: Dialect,
        session: Session,
        body: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        asked = Asked.of(scope, dialect.path, session.bodies.digest(body))
        earlier = session.exchanges.earlier(asked)
        if earlier is not None:
            session.counters["joined_retries"] += 1
            return await earlier.follow(receive, send, timeout_s=session.turn_timeout_s)
        with self._admitted(session):
            await self._exchange(session, dialect, body, asked, receive, send)

    async def _exchange(
        self,
        session: Session,
        dialect: Dialect,
        body: bytes,
        asked: Asked,
        receive: Receive,
        send: Send,
    ) -> None:
        exchange = session.exchanges.open(asked, send)
        grace_s = self._config.disconnect_grace_s if asked.may_come_again else 0.0
        try:
            with _blame(session):
                async with _attended(session, exchange, receive, grace_s=grace_s):
                    await self.answer(session, dialect, body, exchange)
        except ApiError as error:
            event = exchange.error_event(error) or dialect.error_event(error)
            await exchange.fail(error, body=dialect.error(error), event=event)
        finally:
            session.exchanges.close(exchange)

    @contextmanager
    def _admitted(self, session: Session) -> Iterator[None]:
        """Count a request in and out.

        Raises:
            ApiError: 429, there are too many at once; 403, the session has had all its turns.
        """
        config = self._config
        if session.num_turns >= config.max_session_turns:
            raise ApiError(
                403,
                f"This session has had its {config.max_session_turns} turns "
                "(gateway.max_session_turns).",
                code="session_limit",
            )
        if session.exchanges.num_open >= config.max_session_requests:
            raise too_busy("this session", config.max_session_requests, "max_session_requests")
        if self._num_requests >= config.max_requests:
            raise too_busy("the gateway", config.max_requests, "max_requests")
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1


class GatewayApp(SessionApp):
    """Renders messages to tokens, samples from `sampler`, and records what was sampled."""

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
            CompletionsDialect(chat),
        )
        about = {"rung": chat.rung, "rung_why": chat.why}
        super().__init__(sessions, routes, config=config, model_name=model_name, about_model=about)
        self._sampler = sampler
        self._chat = chat
        self._max_model_len = max_model_len
        self._parsers = for_model(chat, config)
        self._grammars = grammars_for(chat, config)

    async def answer(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        request = dialect.read(session, body)
        turns = await open_turns(
            session,
            request,
            self._chat,
            max_model_len=self._max_model_len,
            parsers=self._parsers,
            grammars=self._grammars,
        )

        async def produce(on_events: OnEvents) -> None:
            await sample(turns, self._sampler, on_events)
            nodes = [turn.commit(is_retry=exchange.asked.is_retry) for turn in turns]
            exchange.on_delivery += [node.note_delivery for node in nodes]

        writer = dialect.writer(session, request, turns, model=self._model_name)
        keep_alive_s = self._config.keep_alive_s
        await deliver(exchange, writer, produce, stream=request.stream, keep_alive_s=keep_alive_s)

    async def _count(self, session: Session, request: ChatRequest) -> dict[str, Any]:
        return {"input_tokens": await count_prompt(session, self._chat, request)}


def _named(send: Send, header_name: str) -> Send:
    """Replies carry an id of their request, for people who compare logs."""
    name = (header_name.encode(), f"req_{secrets.token_hex(12)}".encode())

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], name]}
        await send(message)

    return sending


def _address(scope: Scope) -> tuple[str, str]:
    """The path of a request and its API key: `Authorization: Bearer KEY`, `x-api-key: KEY`, or
    /s/KEY before the path."""
    path: str = scope["path"]
    if path.startswith("/s/"):
        key, slash, rest = path[3:].partition("/")
        return slash + rest, key
    return path, key_of(scope)


@contextmanager
def _blame(session: Session) -> Iterator[None]:
    """Note in the session whose fault a failed turn was, and say it as an API error."""
    try:
        yield
    except (ClientGone, asyncio.CancelledError):
        session.counters["undelivered_turns"] += 1
        raise
    except ApiError as error:
        session.counters["overflows"] += error.code == "context_length_exceeded"
        raise
    except ContextLengthError as error:  # the engine's own limit is the tighter one
        session.counters["overflows"] += 1
        code = "context_length_exceeded"
        raise bad_request(str(error), param="messages", code=code) from error
    except EngineError as error:
        session.fail(str(error))
        raise engine_failed(str(error)) from error
    except TimeoutError as error:
        if session.closed:
            session.counters["undelivered_turns"] += 1
            raise session_closed() from error
        timeout = turn_timed_out(session.turn_timeout_s)
        session.fail(
            f"the model's reply took more than {session.turn_timeout_s:g} s "
            "(rollout.turn_timeout_s)"
        )
        raise timeout from error
    except Exception as error:  # a bug of ours must not become a reward of 0
        _log.exception("the gateway failed in session %s", session.id)
        session.fail(f"gateway: {error!r}")
        raise engine_failed(f"The gateway failed: {error!r}") from error


@asynccontextmanager
async def _attended(
    session: Session, exchange: Exchange, receive: Receive, *, grace_s: float
) -> AsyncIterator[None]:
    """Run the body under the session's turn deadline, and only while a client may want it.

    Raises:
        TimeoutError: the deadline passed, or the session was aborted.
        ClientGone: the client hung up, and did not come back.
    """
    async with asyncio.timeout(session.turn_timeout_s) as deadline:
        with session.in_flight(deadline):
            try:
                async with asyncio.TaskGroup() as tasks:
                    watcher = tasks.create_task(
                        exchange.outlive(receive, grace_s=grace_s), name="client"
                    )
                    yield
                    watcher.cancel()
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None
