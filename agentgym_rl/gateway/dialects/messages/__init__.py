"""Anthropic Messages: `POST /v1/messages`, and the count of a request's prompt tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from agentgym_rl.gateway.dialects import Dialect, Question, Route, Writer
from agentgym_rl.gateway.errors import ApiError
from agentgym_rl.gateway.reply import Reply
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.session.session import Session

from .read import count_request, reply_request
from .write import MessagesWriter

_encode = msgspec.json.Encoder().encode
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


Count = Callable[[Session, ChatRequest, int], Awaitable[Mapping[str, Any]]]
"""A function that returns the body of a `count_tokens` reply, with `input_tokens`, to a request of
the given number of bytes."""


class _AnthropicRoute(Route):
    request_id = "request-id"

    def error(self, error: ApiError) -> bytes:
        return _encode(_body(error))


class MessagesDialect(_AnthropicRoute, Dialect):
    """The dialect of `POST /v1/messages`."""

    path = "/v1/messages"

    def read(self, session: Session, body: bytes) -> ChatRequest:
        return reply_request(session, body)

    def writer(
        self, session: Session, request: ChatRequest, turns: Sequence[Reply], *, model: str
    ) -> Writer:
        return MessagesWriter(turns[0], model=model)

    def error_event(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + _encode(_body(error)) + b"\n\n"


class CountTokens(_AnthropicRoute, Question):
    """The path `POST /v1/messages/count_tokens`: the length of the prompt of a reply."""

    path = "/v1/messages/count_tokens"

    def __init__(self, count: Count) -> None:
        self._count = count

    async def answer(self, session: Session, body: bytes) -> bytes:
        size = len(body)
        request = await self.reading(body, size, lambda: count_request(session, body))
        return _encode(await self._count(session, request, size))


def _body(error: ApiError) -> dict[str, object]:
    message = str(error)
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # the words that clients look for
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
