"""The gateway's routes of POST in OpenAPI 3.1, from which requests are made up.

The request types of messages and completions are those into which the gateway reads requests; the
other types are written for the tests, which compare them with the readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from arl_dialects.messages_request import Conversation, MessagesRequest
from msgspec import Meta, Raw, Struct

from agentgym_rl.gateway.dialects.completions import CompletionsRequest
from tests.gateway.completions_wire import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
)
from tests.gateway.responses_wire import (
    ConversationObject,
    Count,
    CreateConversation,
    CreateResponse,
    Response,
)

Json = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class SaidText(Struct, tag_field="type", tag="text"):
    text: str


class SaidThinking(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class SaidToolUse(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Json


class MessageUsage(Struct):
    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count


class Message(Struct, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"]
    model: str
    content: list[SaidText | SaidThinking | SaidToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Struct, omit_defaults=True):
    input_tokens: Count
    estimated: bool = False
    """Whether the number is estimated without the model's own tokenizer."""


class InputTokens(Struct, omit_defaults=True):
    object: Literal["response.input_tokens"]
    input_tokens: Count
    estimated: bool = False


class ErrorDetail(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    error: ErrorDetail


class AnthropicErrorDetail(Struct, omit_defaults=True):
    type: str
    message: str
    details: dict[str, str | None] | None = None
    """The `error_code` of an error of a thread."""


class AnthropicError(Struct, tag_field="type", tag="error"):
    error: AnthropicErrorDetail


_REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class _Described:
    asked: type
    answered: type
    error: type = Error
    streams: bool = False


ROUTES: Mapping[str, _Described] = {
    "/v1/chat/completions": _Described(
        ChatCompletionRequest,
        ChatCompletion,
        streams=True,
    ),
    "/v1/completions": _Described(CompletionsRequest, Completion, streams=True),
    "/v1/responses": _Described(CreateResponse, Response, streams=True),
    "/v1/responses/input_tokens": _Described(CreateResponse, InputTokens),
    "/v1/messages": _Described(
        MessagesRequest,
        Message,
        AnthropicError,
        streams=True,
    ),
    "/v1/messages/count_tokens": _Described(
        Conversation,
        TokenCount,
        AnthropicError,
    ),
    "/v1/conversations": _Described(CreateConversation, ConversationObject),
}


def document() -> dict[str, Any]:
    """Return the description of all paths on which a gateway answers POST without an id in it."""
    kinds = [
        kind
        for described in ROUTES.values()
        for kind in (described.asked, described.answered, described.error)
    ]
    references, components = _schemas(kinds)
    return {
        "openapi": "3.1.0",
        "info": {"title": "gateway", "version": "1"},
        "components": {"schemas": components},
        "paths": {
            path: {"post": _operation(described, references)} for path, described in ROUTES.items()
        },
    }


def _operation(described: _Described, references: Mapping[type, Any]) -> dict[str, Any]:
    answered = {"application/json": {"schema": references[described.answered]}}
    if described.streams:
        answered["text/event-stream"] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": references[described.error]}}
    body = {"application/json": {"schema": references[described.asked]}}
    return {
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "The answer.", "content": answered},
            "4XX": {"description": "An error in the request.", "content": error},
            "5XX": {"description": "A failure here.", "content": error},
        },
    }


def _schemas(kinds: list[type]) -> tuple[dict[type, Any], dict[str, Any]]:
    found, components = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of_raw, ref_template=_REF
    )
    return dict(zip(kinds, found, strict=True)), components


def _schema_of_raw(kind: type) -> dict[str, Any]:
    if kind is Raw:
        return {}
    raise NotImplementedError(f"no schema for {kind}")
