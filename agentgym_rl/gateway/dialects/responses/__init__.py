"""The Responses API: `POST /v1/responses`, one sampled turn for each request.

requests → items      parameters, and input items as chat messages
writer → output       the Response object and its events, made of the sampled reply
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentgym_rl.gateway.dialects import Dialect, Writer
from agentgym_rl.gateway.errors import ApiError
from agentgym_rl.gateway.reply import Reply
from agentgym_rl.gateway.request.chat_request import ChatRequest
from agentgym_rl.gateway.session.session import Session

from .requests import ResponsesRequest, read_request
from .writer import (
    ResponsesWriter,
    error_fields,
    write_event,
)


class ResponsesDialect(Dialect):
    """A dialect in which a conversation continues by full input or by `previous_response_id`."""

    path = "/v1/responses"

    def read(self, session: Session, body: bytes) -> ResponsesRequest:
        return read_request(session, body)

    def writer(
        self, session: Session, request: ChatRequest, turns: Sequence[Reply], *, model: str
    ) -> Writer:
        assert isinstance(request, ResponsesRequest)
        [turn] = turns
        return ResponsesWriter(session, request, turn, model=model)

    def error(self, error: ApiError) -> bytes:
        said = error.body["error"]
        param = "input" if said["param"] == "messages" else said["param"]
        return msgspec.json.encode({"error": {**said, "param": param}})

    def error_event(self, error: ApiError) -> bytes:
        name, fields = error_fields(error)
        return write_event(name, {**fields, "sequence_number": 0})
