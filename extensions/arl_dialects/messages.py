"""Anthropic Messages: `POST /v1/messages`, and the count of a request's prompt tokens.

Replies are blocks of thoughts, text and tool calls, in sampled order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Raw

from agentgym_rl.gateway import (
    ApiError,
    ChatRequest,
    Dialect,
    Event,
    Question,
    Reply,
    Route,
    Session,
    ToolCall,
    WireFormat,
    Writer,
    typed_event,
)
from agentgym_rl.gateway.dialects import Count
from agentgym_rl.gateway.dialects.formats import Served

from .messages_request import Wrapped, count_request, reply_request
from .messages_threads import ThreadRequest, keep
from .stored import KEPT_SIZE

_encode = msgspec.json.Encoder().encode
_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


class MessagesWriter(Writer):
    """A writer that sends text as it is sampled, and each tool call as its block closes."""

    def __init__(self, session: Session, request: ChatRequest, turn: Reply, *, model: str) -> None:
        self._session = session
        self._request = request
        self._turn = turn
        self._id = f"msg_{turn.id}"
        self._head = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._said: list[Event] = []
        self._num_blocks = 0
        self._num_calls = 0
        self._open = ""
        """The type of the block whose deltas are being sent, or ""."""
        if isinstance(request, ThreadRequest):
            self.ending_size = KEPT_SIZE * len(request.messages)

    def whole(self) -> bytes:
        self._keep()
        return _encode(
            {**self._head, "content": self._content(), **self._ending(), "usage": self._usage()}
        )

    def take(self, turn: Reply, events: Sequence[Event]) -> None:
        self._said += events

    def begin(self) -> bytes:
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        usage = {**self._usage(), "output_tokens": 0}
        return typed_event("message_start", {"message": {**message, "usage": usage}})

    def events(self, turn: Reply, events: Sequence[Event]) -> bytes:
        return b"".join(data for event in events for data in self._pieces(event))

    def end(self) -> bytes:
        self._keep()
        pieces = self._closed()
        ending = {"delta": self._ending(), "usage": self._usage()}
        pieces.append(typed_event("message_delta", ending))
        return b"".join((*pieces, typed_event("message_stop", {})))

    def _keep(self) -> None:
        """Keep the conversation just before its end is written, if the reply may be continued."""
        if isinstance(self._request, ThreadRequest):
            keep(self._session, self._request, self._turn, id=self._id)

    def _pieces(self, event: Event) -> list[bytes]:
        if isinstance(event, ToolCall):
            return self._call(event)
        return self._words(*_spoken(event))

    def _words(self, kind: str, text: str) -> list[bytes]:
        """Write a piece of text or thought, in the open block or in a new one."""
        pieces: list[bytes] = []
        if self._open != kind:
            pieces += self._closed()
            pieces.append(self._start(_EMPTY[kind]))
            self._open = kind
        return [*pieces, self._delta({"type": f"{kind}_delta", kind: text})]

    def _call(self, call: ToolCall) -> list[bytes]:
        pieces = self._closed()
        block = self._tool_use(call, self._num_calls)
        self._num_calls += 1
        written = bytes(block["input"]).decode()
        pieces.append(self._start({**block, "input": {}}))
        self._open = "tool_use"
        pieces.append(self._delta({"type": "input_json_delta", "partial_json": written}))
        return [*pieces, *self._closed()]

    def _start(self, block: dict[str, Any]) -> bytes:
        return self._block_event("start", content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._block_event("delta", delta=delta)

    def _block_event(self, what: str, **fields: Any) -> bytes:
        return typed_event(f"content_block_{what}", {"index": self._num_blocks, **fields})

    def _closed(self) -> list[bytes]:
        """Write the end of the open block, if one is open."""
        if not self._open:
            return []
        pieces: list[bytes] = []
        if self._open == "thinking":
            pieces.append(self._delta({"type": "signature_delta", "signature": self._turn.id}))
        pieces.append(self._block_event("stop"))
        self._num_blocks += 1
        self._open = ""
        return pieces

    def _content(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        num_calls = 0
        for event in self._said:
            if isinstance(event, ToolCall):
                blocks.append(self._tool_use(event, num_calls))
                num_calls += 1
                continue
            kind, text = _spoken(event)
            if not blocks or blocks[-1]["type"] != kind:
                signed = {"signature": self._turn.id} if kind == "thinking" else {}
                blocks.append({**_EMPTY[kind], **signed})
            blocks[-1][kind] += text
        return blocks

    def _tool_use(self, call: ToolCall, position: int) -> dict[str, Any]:
        return {
            "type": "tool_use",
            "id": self._turn.call_id(position, call),
            "name": call.name,
            "input": input_of(call),
        }

    def _ending(self) -> dict[str, Any]:
        reason, stop = _STOPS[self._turn.finish_reason], self._turn.stop_string
        stopped = reason == "end_turn" and stop is not None
        return {
            "stop_reason": "stop_sequence" if stopped else reason,
            "stop_sequence": stop if stopped else None,
        }

    def _usage(self) -> dict[str, int]:
        cached = self._turn.num_cached_tokens
        return {
            "input_tokens": self._turn.num_prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._turn.num_sampled_tokens,
        }


def _spoken(event: Event) -> tuple[str, str]:
    """Return the block type and the text of an event that is not a call."""
    assert not isinstance(event, ToolCall)
    return ("text", event) if isinstance(event, str) else ("thinking", event.text)


def input_of(call: ToolCall) -> Raw:
    """Return the client's JSON for a call: the arguments byte for byte if they are an object."""
    try:
        value: Any = None if call.malformed else msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if isinstance(value, dict) and value.keys() != {"_raw"}:
        return Raw(call.arguments.encode())
    return Raw(msgspec.json.encode(Wrapped(call.arguments)))


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
        return MessagesWriter(session, request, turns[0], model=model)

    def error_event(self, error: ApiError) -> bytes:
        return typed_event("error", _body(error))


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
    named = (error.code or "").startswith("thread_")  # the SDKs then send the complete conversation
    details = {"details": {"error_code": error.code}} if named else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


class Messages(WireFormat):
    """Anthropic's Messages: replies, and the count of a prompt's tokens."""

    key_headers: ClassVar[tuple[str, ...]] = ("x-api-key",)
    client_header: ClassVar[str] = "anthropic-version"

    def routes(self, served: Served) -> Sequence[Route]:
        return MessagesDialect(), CountTokens(served.count)


FORMAT = Messages()
