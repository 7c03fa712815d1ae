"""The OpenAPI 3.1 description of a gateway's routes, `GET /openapi.json`.

The request types of messages and completions come from `dialects`, which reads requests into them;
the types of the Responses API and of chat completions come from `dialects/responses_wire` and
`dialects/completions_wire`; the others are here. Tests compare types that no request is read into
with the hand-written readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from agentgym_rl.gateway.dialects.completions import CompletionsRequest
from agentgym_rl.gateway.dialects.completions_wire import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
)
from agentgym_rl.gateway.dialects.messages_request import Conversation, MessagesRequest
from agentgym_rl.gateway.dialects.responses_wire import (
    ConversationObject,
    Count,
    CreateConversation,
    CreateItems,
    CreateResponse,
    Deleted,
    ItemList,
    Response,
    UpdateConversation,
)
from agentgym_rl.gateway.template.continuation import Rung

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
    """The flag of a number that is estimated without the model's own tokenizer."""


class InputTokens(Struct, omit_defaults=True):
    object: Literal["response.input_tokens"]
    input_tokens: Count
    estimated: bool = False


class Model(Struct, omit_defaults=True):
    id: str
    object: Literal["model"]
    owned_by: str
    created: int
    rung: Rung | None = None
    """The way in which a turn is continued on the exact tokens before it."""
    rung_why: str = ""
    """The reason against the rungs above it, if there are any."""


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


class AnyItem(Struct):
    type: str
    id: str


class Health(Struct):
    pass


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


_STRING = {"type": "string"}
_REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class _Described:
    summary: str
    asked: type | None
    answered: type
    error: type = Error
    streams: bool = False


_POST: Mapping[str, _Described] = {
    "/v1/chat/completions": _Described(
        "A chat completion.",
        ChatCompletionRequest,
        ChatCompletion,
        streams=True,
    ),
    "/v1/completions": _Described(
        "The continuation of a prompt.", CompletionsRequest, Completion, streams=True
    ),
    "/v1/responses": _Described(
        "A response of typed items.", CreateResponse, Response, streams=True
    ),
    "/v1/responses/input_tokens": _Described(
        "The tokens that a response would be sampled from.", CreateResponse, InputTokens
    ),
    "/v1/messages": _Described(
        "A reply, in Anthropic's shape.",
        MessagesRequest,
        Message,
        AnthropicError,
        streams=True,
    ),
    "/v1/messages/count_tokens": _Described(
        "The tokens that a reply would be sampled from.",
        Conversation,
        TokenCount,
        AnthropicError,
    ),
}
_GET: Mapping[str, _Described] = {
    "/health": _Described("The health of the gateway.", None, Health),
    "/v1/models": _Described("The list of the one model.", None, ModelList),
    "/v1/models/{model}": _Described("The model, by its name.", None, Model),
}
_STORED: Mapping[tuple[str, str], _Described] = {
    ("get", "/v1/responses/{id}"): _Described("A stored response.", None, Response),
    ("delete", "/v1/responses/{id}"): _Described("Forget a response.", None, Deleted),
    ("get", "/v1/responses/{id}/input_items"): _Described("Its input.", None, ItemList),
    ("post", "/v1/conversations"): _Described(
        "A new conversation.", CreateConversation, ConversationObject
    ),
    ("get", "/v1/conversations/{id}"): _Described("A conversation.", None, ConversationObject),
    ("post", "/v1/conversations/{id}"): _Described(
        "Other metadata.", UpdateConversation, ConversationObject
    ),
    ("delete", "/v1/conversations/{id}"): _Described("Forget a conversation.", None, Deleted),
    ("get", "/v1/conversations/{id}/items"): _Described("Its items.", None, ItemList),
    ("post", "/v1/conversations/{id}/items"): _Described("Add items.", CreateItems, ItemList),
    ("get", "/v1/conversations/{id}/items/{item}"): _Described("An item.", None, AnyItem),
    ("delete", "/v1/conversations/{id}/items/{item}"): _Described(
        "Forget an item.", None, ConversationObject
    ),
}
"""The resources of a session, which need its key."""
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(posted: Iterable[str], *, model: str) -> dict[str, Any]:
    """Return the description of a gateway that answers POST on the paths `posted`."""
    operations = {("post", path): _POST[path] for path in posted if path in _POST}
    operations |= {("get", path): described for path, described in _GET.items()}
    operations |= _STORED
    kinds = [
        kind
        for described in operations.values()
        for kind in (described.asked, described.answered, described.error)
        if kind is not None
    ]
    references, components = _schemas(kinds)
    paths: dict[str, dict[str, Any]] = {}
    for (verb, path), described in operations.items():
        needs_key = (verb, path) in _STORED or verb == "post"
        operation = _operation(path, described, references, model=model, needs_key=needs_key)
        paths.setdefault(path, {})[verb] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "agentgym-rl gateway",
            "version": "1",
            "description": "The API key names a session. /s/KEY before a path is a key, too.",
        },
        "components": {"schemas": components, "securitySchemes": _KEYS},
        "paths": paths,
    }


def _operation(
    path: str,
    described: _Described,
    references: Mapping[Any, Any],
    *,
    model: str,
    needs_key: bool,
) -> dict[str, Any]:
    answered = {"application/json": {"schema": references[described.answered]}}
    if described.streams:
        answered["text/event-stream"] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": references[described.error]}}
    operation: dict[str, Any] = {
        "summary": described.summary,
        "responses": {
            "200": {"description": "The answer.", "content": answered},
            "4XX": {"description": "An error in the request.", "content": error},
            "5XX": {"description": "A failure here; see x-should-retry.", "content": error},
        },
    }
    if described.asked is not None:
        body = {"application/json": {"schema": references[described.asked]}}
        operation["requestBody"] = {"required": True, "content": body}
    if needs_key:
        operation["security"] = [{name: []} for name in _KEYS]
    names = re.findall(r"{(\w+)}", path)
    if names:
        kinds = {"model": {"type": "string", "enum": [model]}}
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": kinds.get(name, _STRING)}
            for name in names
        ]
    return operation


def _schemas(kinds: list[type]) -> tuple[dict[type, Any], dict[str, Any]]:
    found, components = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of_raw, ref_template=_REF
    )
    return dict(zip(kinds, found, strict=True)), components


def _schema_of_raw(kind: type) -> dict[str, Any]:
    if kind is Raw:
        return {}
    raise NotImplementedError(f"no schema for {kind}")
