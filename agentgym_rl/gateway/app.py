"""The OpenAI endpoint as a bare ASGI callable.

    POST /v1/chat/completions    streamed or not; the API key names the session
    GET  /v1/models, /health

A turn is recorded before the bytes that end its reply leave, so that whatever a client saw whole
is in the record. A turn whose client hangs up first is aborted and leaves only a count.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

import msgspec

from agentgym_rl.asgi import BodyTooLarge, Receive, Scope, Send, header, read_body, reply
from agentgym_rl.config import GatewayConfig
from agentgym_rl.engine import Sampler
from agentgym_rl.errors import ContextLengthError, EngineError

from .chat import ChatFormat
from .errors import ApiError, bad_request, engine_failed, session_closed, turn_timed_out
from .parsers import for_model
from .replies import Reply
from .requests import parse_request
from .sessions import Session, SessionTable
from .stream import EventStream, stream_turn
from .turn import Turn, open_turn

_log = logging.getLogger(__name__)

_READ_TIMEOUT_S = 30.0


class ClientGone(ConnectionError):
    """The client hung up before its reply was complete."""


class SessionApp(ABC):
    """Answers chat completions for the sessions of `sessions`; where the replies come from is
    `answer`."""

    def __init__(self, sessions: SessionTable, *, config: GatewayConfig, model_name: str) -> None:
        self._sessions = sessions
        self._config = config
        self._model_name = model_name

    @abstractmethod
    async def answer(self, session: Session, body: bytes, stream: EventStream) -> bytes | None:
        """The reply to a request body; None if it went out over `stream`, as was asked.

        Raises:
            ApiError: what the agent is told.
            EngineError, TimeoutError: infrastructure failed.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "serve the gateway with lifespan and websockets off"
        route = (scope["method"], scope["path"])
        try:
            if route == ("POST", "/v1/chat/completions"):
                await self._chat_completions(scope, receive, send)
            elif route == ("GET", "/v1/models"):
                model = {"id": self._model_name, "object": "model", "owned_by": "agentgym-rl"}
                await reply(send, 200, msgspec.json.encode({"object": "list", "data": [model]}))
            elif route == ("GET", "/health"):
                await reply(send, 200, b"{}")
            else:
                raise ApiError(404, f"No route {' '.join(route)}.", code="not_found")
        except ApiError as error:
            body = msgspec.json.encode(error.body)
            await reply(send, error.status, body, headers=error.headers)
        except ConnectionError:
            _log.debug("a client hung up before its reply was complete")

    async def _chat_completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._sessions.authenticate(_api_key(scope))
        request = await self._read(receive)
        stream = EventStream(send)
        try:
            with _blame(session):
                async with _attended(session, receive):
                    body = await self.answer(session, request, stream)
        except ApiError as error:
            if not stream.started:
                raise
            return await stream.fail(error)
        if body is not None:
            await reply(send, 200, body)

    async def _read(self, receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                return await read_body(receive, limit_bytes=self._config.max_body_bytes)
        except BodyTooLarge as error:
            raise ApiError(413, str(error), code="request_too_large") from error
        except TimeoutError as error:
            raise ApiError(408, "The request body did not arrive in time.") from error


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
        super().__init__(sessions, config=config, model_name=model_name)
        self._sampler = sampler
        self._chat = chat
        self._max_model_len = max_model_len
        self._parsers = for_model(chat, config)

    async def answer(self, session: Session, body: bytes, stream: EventStream) -> bytes | None:
        request = parse_request(body)
        turn = await open_turn(
            session,
            request,
            self._chat,
            max_model_len=self._max_model_len,
            parsers=self._parsers,
        )
        head = Reply(f"chatcmpl-{turn.id}", model=self._model_name)
        if request.stream:
            return await stream_turn(turn, self._sampler, head, stream)
        return await _whole(turn, self._sampler, head)


async def _whole(turn: Turn, sampler: Sampler, head: Reply) -> bytes:
    async with aclosing(turn.events(sampler)) as batches:
        async for _ in batches:
            pass
    return head.whole(
        turn.commit(),
        finish_reason=turn.finish_reason,
        usage=turn.usage(),
        logprobs=turn.logprobs(),
    )


def _api_key(scope: Scope) -> str:
    """The API key of a request: `Authorization: Bearer KEY`, or `x-api-key: KEY`."""
    scheme, _, key = header(scope, b"authorization").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key")


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
async def _attended(session: Session, receive: Receive) -> AsyncIterator[None]:
    """Run the body under the session's turn deadline, and only while the client listens.

    Raises:
        TimeoutError: the deadline passed, or the session was aborted.
        ClientGone: the client hung up.
    """
    async with asyncio.timeout(session.turn_timeout_s) as deadline:
        with session.in_flight(deadline):
            try:
                async with asyncio.TaskGroup() as tasks:
                    watcher = tasks.create_task(_hang_up(receive), name="client")
                    yield
                    watcher.cancel()
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone("the client hung up before its reply was complete")
