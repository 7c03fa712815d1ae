"""Anthropic Messages: `POST /v1/messages`, and the tokens a request would be, counted."""

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
"""What `count_tokens` answers to a request of so many bytes: `input_tokens`, and what there is to
say of them."""


class _AnthropicRoute(Route):
    request_id = "request-id"

    def error(self, error: ApiError) -> bytes:
        return _encode(_body(error))


class MessagesDialect(_AnthropicRoute, Dialect):
    """`POST /v1/messages`."""

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
    """`POST /v1/messages/count_tokens`: how much a reply would be sampled from."""

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
        message = f"prompt is too long: {message}"  # the words clients look for
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
