"""The server of sessions: it opens them, serves them an OpenAI endpoint, and returns their records.

It is a plain ASGI callable for any source of the replies; `Gateway` is the one for our own engines:

    POST the path of a dialect    streamed or not; the API key names the session
    POST the path of a question   answered at once
    GET, POST, DELETE the paths of resources
    GET  /v1/models, /v1/models/NAME, /health; HEAD, too

Clients that cannot set a key put it into the path: /s/KEY/v1/chat/completions.

A turn is recorded before the last bytes of its reply are sent, so all complete replies are in the
record. If a client hangs up first, its turn goes on for `gateway.disconnect_grace_s`, because the
client may send the request again. After that time the turn is aborted and only counted.

Routing is by hand, not by `runtime.http_server.Api`: it must be fast, and Starlette has no routes
for a key in the path, or for the format of errors on an unknown path.
"""

from __future__ import annotations

import logging
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Mapping, MutableMapping, Sequence, Set
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import parse_qs

import msgspec

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import absent_members
from agentgym_rl.gateway.dialects import Dialect, Question, ResourceRequest, Resources, Route
from agentgym_rl.gateway.dialects.formats import GROUP, Served, routes_of, wire_formats
from agentgym_rl.gateway.errors import ApiError, no_websocket, too_busy, wrong_method
from agentgym_rl.gateway.request.body import body_of, check_values, in_thread_if_large, key_of
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.request.offered_tools import OmittedNames
from agentgym_rl.gateway.retries_and_hangups import Exchange, RequestIdentity
from agentgym_rl.gateway.session.sampling import SessionSampling
from agentgym_rl.gateway.session.session import Session, SessionRecord, SessionTable
from agentgym_rl.runtime import ENGINE_CLOCK, App, Receive, Scope, Send, serving, together
from agentgym_rl.runtime.http_server import header, reply

from .blame import blamed

_log = logging.getLogger(__name__)

_MODELS = "/v1/models"


class SessionServer(ABC):
    """A server for the agents of the sessions opened here; `answer` produces the replies."""

    session_type: ClassVar[type[Session]] = Session
    odd_replies: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The meaning of replies that are counted as odd, and what helps, by the name of the count."""

    def __init__(
        self,
        served: Served,
        *,
        config: GatewayConfig,
        model_name: str,
        about_model: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.app: App = self
        """The app that is served; other code may replace it by a wrapper."""
        self.model_name = model_name
        """The name in `/v1/models`."""
        self._sessions = SessionTable()
        formats = wire_formats()
        found = routes_of(formats, served)
        routes = [route for of_one in found.values() for route in of_one]
        self._resources = {one.path: one for one in routes if isinstance(one, Resources)}
        self._routes: Mapping[str, Route] = {
            one.path: one for one in routes if not isinstance(one, Resources)
        }
        self._key_headers = tuple(name for one in formats.values() for name in one.key_headers)
        self._by_header = {
            one.client_header.encode(): found[name][0].path
            for name, one in formats.items()
            if one.client_header
        }
        """The path whose error format a client expects, by the header that identifies the
        client."""
        self._config = config
        self._about_model = about_model
        self._num_requests = 0
        self._omitted = OmittedNames()
        self._ignored = set[str]()
        """The sampling parameters that the log has named."""

    @property
    def num_sessions(self) -> int:
        """Return the number of open sessions."""
        return len(self._sessions)

    def open_session(
        self, *, sampling: SessionSampling, session_id: str, turn_timeout_s: float = 60.0
    ) -> Session:
        """Open a new session; `session.key` is the API key of its agent.

        `turn_timeout_s` limits the time without a new token (see `Patience`); a turn that exceeds
        it is a failure of the infrastructure.
        """
        session = self.session_type(
            session_id, sampling=sampling, turn_timeout_s=turn_timeout_s, config=self._config
        )
        self._sessions.add(session)
        return session

    def close_session(self, session: Session) -> SessionRecord:
        """Close the session to its key (410 from now on) and return its record. Idempotent.

        Turns in flight are aborted and not recorded.
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

    @abstractmethod
    async def answer(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange
    ) -> None:
        """Answer a request body, in one body or with events.

        Raises:
            ApiError: the error for the agent.
            EngineError, TimeoutError: infrastructure failed.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "serve the gateway with lifespan and websockets off"
        path, key = _address(scope, self._key_headers)
        api = self._api(path, scope)
        send = _named(send, Route.request_id if api is None else api.request_id)
        if scope["method"] == "HEAD":
            send = _without_body(send)
        try:
            if scope["method"] == "GET" and header(scope, b"sec-websocket-key"):
                raise no_websocket(path)
            if api is not None and api.path == path and scope["method"] == "POST":
                await self._post(api, key, scope, receive, send)
            elif (resources := self._resources_of(path)) is not None:
                found = await self._resource(resources, path, key, scope, receive)
                await reply(send, 200, found)
            else:
                await reply(send, 200, self._get(scope["method"], path))
        except ApiError as error:
            body = msgspec.json.encode(error.body) if api is None else api.error(error)
            await reply(send, error.status, body, headers=error.headers)
        except ConnectionError:
            _log.debug("a client hung up before its reply was complete")

    def _api(self, path: str, scope: Scope) -> Route | None:
        """Return the route of a path, or else a route of the same API, which determines the format
        of errors."""
        if path not in self._routes:
            theirs = (first for name, first in self._by_header.items() if header(scope, name))
            path = next(theirs, path)
        while path and path not in self._routes:
            path = path.rpartition("/")[0]
        return self._routes.get(path)

    def _resources_of(self, path: str) -> Resources | None:
        """Return the resources to which a path belongs, even if it is not one of their routes."""
        found = (one for base, one in self._resources.items() if path.startswith(f"{base}/"))
        return next(found, None if path in self._routes else self._resources.get(path))

    async def _resource(
        self, resources: Resources, path: str, key: str, scope: Scope, receive: Receive
    ) -> bytes:
        session = self._sessions.authenticate(key)
        body = await body_of(scope, receive, limit_bytes=self._config.max_body_bytes)
        check_values(body)
        parts = tuple(path.removeprefix(resources.path).strip("/").split("/"))
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        resource = ResourceRequest(method, () if parts == ("",) else parts, query, body)
        with blamed(session):
            found = await in_thread_if_large(len(body), resources.serve, session, resource)
        if found is None:
            there = ", ".join(f"{' '.join(v)} {p}" for p, v in resources.operations.items())
            why = f"No route {method} {path}; there are {there}."
            raise ApiError(404, why, code="not_found")
        return msgspec.json.encode(found)

    def _get(self, method: str, path: str) -> bytes:
        model = {"id": self.model_name, "object": "model", "owned_by": "agentgym-rl", "created": 0}
        model |= self._about_model
        routes = {
            "/health": {},
            _MODELS: {"object": "list", "data": [model]},
            f"{_MODELS}/{self.model_name}": model,
        }
        if path in self._routes:
            raise wrong_method(method, path, allowed="POST")
        name = path.removeprefix(f"{_MODELS}/")
        if name != path and name != self.model_name:
            raise ApiError(
                404,
                f"The model {name!r} does not exist; there is {self.model_name!r}.",
                param="model",
                code="model_not_found",
            )
        if path not in routes:
            there_are = [f"POST {path}" for path in self._routes] + [f"GET {p}" for p in routes]
            raise ApiError(
                404,
                f"No route {method} {path}; there are {', '.join(there_are)}."
                f"{absent_members(GROUP)}",
                code="not_found",
            )
        if method not in ("GET", "HEAD"):
            raise wrong_method(method, path, allowed="GET, HEAD")
        return msgspec.json.encode(routes[path])

    async def _post(
        self, route: Route, key: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        session = self._sessions.authenticate(key)
        body = await body_of(scope, receive, limit_bytes=self._config.max_body_bytes)
        if isinstance(route, Dialect):
            await self._turn(route, session, body, scope, receive, send)
        elif isinstance(route, Question):
            self._admit(session)
            try:
                answer = await self._at_once(route, session, body)
            finally:
                self._num_requests -= 1
            await reply(send, 200, answer)

    async def _at_once(self, question: Question, session: Session, body: bytes) -> bytes:
        with blamed(session):
            async with ENGINE_CLOCK.timeout(session.turn_timeout_s):
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
        num_new = session.bodies.num_new(body)
        digest = await in_thread_if_large(num_new, session.bodies.digest, body)
        identity = RequestIdentity.of(scope, dialect.path, digest, num_new)
        earlier = session.exchanges.earlier(identity)
        if earlier is not None:
            session.counters["joined_retries"] += 1
            return await earlier.follow(receive, send, timeout_s=session.longest_turn_s)
        self._admit(session)
        exchange = session.exchanges.open(identity, send)
        try:
            await self._attend(session, dialect, body, exchange, receive)
        except ApiError as error:
            event = exchange.error_event(error) or dialect.error_event(error)
            await exchange.fail(error, body=dialect.error(error), event=event)
        finally:
            session.exchanges.close(exchange)
            self._num_requests -= 1

    async def _attend(
        self, session: Session, dialect: Dialect, body: bytes, exchange: Exchange, receive: Receive
    ) -> None:
        """Answer within the session's turn deadline, as long as a client may want the answer.

        Raises:
            ApiError: the error to send instead.
            ClientGone: the client hung up, and did not come back.
        """
        grace_s = self._config.disconnect_grace_s if exchange.identity.may_come_again else 0.0
        with blamed(session):
            async with ENGINE_CLOCK.timeout(
                session.turn_timeout_s,
                own=lambda: max(session.progress_s, self.progress_s(session)[0]),
                others=lambda: self.progress_s(session)[1],
            ) as deadline:
                session.in_flight.add(deadline)
                try:
                    async with together() as tasks:
                        watcher = tasks.create_task(exchange.outlive(receive, grace_s=grace_s))
                        await self.answer(session, dialect, body, exchange)
                        watcher.cancel()
                finally:
                    session.in_flight.discard(deadline)
                    session.progress_s = ENGINE_CLOCK.time()

    def note_omissions(self, session: Session, request: ChatRequest) -> None:
        """Count and log the parts of an accepted request that the model does not see."""
        session.note_omissions(request)
        self._omitted.warn(request.omitted_tools)
        self.note_ignored(session, request.ignored)

    def note_ignored(self, session: Session, names: Set[str]) -> None:
        """Count a request whose sampling parameters `names` were left to the session, and name each
        of them once in the log."""
        found = session.note_ignored(names) - self._ignored
        self._ignored |= found
        if found:
            _log.warning(
                "requests set %s, which the session decides (gateway.sampling): ignored",
                ", ".join(sorted(found)),
            )

    def progress_s(self, session: Session) -> tuple[float, float]:
        """Return the times of the last tokens for a session; see `Sampler.progress_s`."""
        return -math.inf, -math.inf

    def _admit(self, session: Session) -> None:
        """Count a request as open; the caller must decrement the count.

        Raises:
            ApiError: 429, too many requests at once; 403, the session has had all its turns.
        """
        config = self._config
        if session.num_turns >= config.max_session_turns:
            raise ApiError(
                403,
                f"This session has reached its limit of {config.max_session_turns} turns "
                "(gateway.max_session_turns).",
                code="session_limit",
            )
        if session.exchanges.num_open >= config.max_session_requests:
            raise too_busy("this session", config.max_session_requests, "max_session_requests")
        if self._num_requests >= config.max_requests:
            raise too_busy("the gateway", config.max_requests, "max_requests")
        self._num_requests += 1


def _named(send: Send, header_name: str) -> Send:
    """Add an id of the request to replies, for the comparison of logs."""

    def sending(message: MutableMapping[str, Any]) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            name = (header_name.encode(), f"req_{secrets.token_hex(12)}".encode())
            message = {**message, "headers": [*message["headers"], name]}
        return send(message)

    return sending


def _without_body(send: Send) -> Send:
    """Answer HEAD: send the headers of GET without the body."""

    def sending(message: MutableMapping[str, Any]) -> Awaitable[None]:
        return send({**message, "body": b""} if "body" in message else message)

    return sending


def _address(scope: Scope, key_headers: Sequence[str]) -> tuple[str, str]:
    """Return the path of a request and its API key: `Authorization: Bearer KEY`, one of
    `key_headers`, or /s/KEY before the path."""
    path: str = scope["path"]
    if path.startswith("/s/"):
        key, slash, rest = path[3:].partition("/")
        return slash + rest, key
    return path, key_of(scope, key_headers)
