"""The OpenAPI 3.1 description of a gateway's routes, `GET /openapi.json`.

The request types of messages and completions come from `dialects`, which reads requests into them;
the types of the Responses API come from `dialects/responses_wire`; the others are here. Tests
compare types that no request is read into with the hand-written readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from agentgym_rl.gateway.dialects.completions import CompletionsRequest, Seed, Text, Zero
from agentgym_rl.gateway.dialects.messages_request import Conversation, MessagesRequest
from agentgym_rl.gateway.dialects.responses_wire import (
    Count,
    CreateResponse,
    JsonObject,
    JsonObjectFormat,
    PlainText,
    Response,
)
from agentgym_rl.gateway.request.body import StreamOptions
from agentgym_rl.gateway.request.chat_request import MAX_SAMPLES, MAX_TOP_K
from agentgym_rl.gateway.template.continuation import Rung

Json = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class TextPart(Struct):
    text: str
    type: Literal["text"] = "text"


Content = str | list[TextPart] | None


class CalledFunction(Struct):
    name: str
    arguments: str


class Call(Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class _Said(Struct, tag_field="role"):
    content: Content
    name: str | None = None


class ChatSystemMessage(_Said, tag="system"):
    pass


class ChatDeveloperMessage(_Said, tag="developer"):
    pass


class ChatUserMessage(_Said, tag="user"):
    pass


class ChatAssistantMessage(Struct, tag_field="role", tag="assistant"):
    content: Content = None
    tool_calls: list[Call] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    name: str | None = None


class ChatToolMessage(Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: Content
    name: str | None = None


ChatMessage = (
    ChatSystemMessage
    | ChatDeveloperMessage
    | ChatUserMessage
    | ChatAssistantMessage
    | ChatToolMessage
)


class Function(Struct):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class FunctionTool(Struct):
    function: Function
    type: Literal["function"] = "function"


class NamedSchema(Struct):
    name: str
    schema: JsonObject | None = None
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Struct, tag_field="type", tag="json_schema"):
    json_schema: NamedSchema


class NamedFunction(Struct):
    name: str


class FunctionChoice(Struct, tag_field="type", tag="function"):
    function: NamedFunction


class AllowedTools(Struct):
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Meta(min_length=1)]


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools"):
    """A list of allowed tools; with mode auto, it must contain all tools."""

    allowed_tools: AllowedTools


class ChatCompletionRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    """The options of a stream; they need `stream`."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] | None = None
    seed: Seed | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=4)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    response_format: PlainText | JsonObjectFormat | SchemaFormat | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[JsonObject, Meta(max_length=0)] | None = None
    chat_template_kwargs: JsonObject | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    verbosity: Any = None


class Usage(Struct):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class ReplyMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[Call] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class TokenLogprob(Struct):
    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: list[Any]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None


FinishReason = Literal["stop", "length", "tool_calls"]


class ChatChoice(Struct):
    index: Count
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]]
    text_offset: list[Count]


class CompletionChoice(Struct):
    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    prompt_token_ids: list[Count] = field(default_factory=list[int])
    token_ids: list[Count] = field(default_factory=list[int])


class Completion(Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


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


class Health(Struct):
    pass


class ErrorDetail(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    error: ErrorDetail


class AnthropicErrorDetail(Struct):
    type: str
    message: str


class AnthropicError(Struct, tag_field="type", tag="error"):
    error: AnthropicErrorDetail


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
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document(posted: Iterable[str], *, model: str) -> dict[str, Any]:
    """Return the description of a gateway that answers POST on the paths `posted`."""
    operations = {path: ("post", _POST[path]) for path in posted if path in _POST}
    operations |= {path: ("get", described) for path, described in _GET.items()}
    kinds = [
        kind
        for _, described in operations.values()
        for kind in (described.asked, described.answered, described.error)
        if kind is not None
    ]
    references, components = _schemas(kinds)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "agentgym-rl gateway",
            "version": "1",
            "description": "The API key names a session. /s/KEY before a path is a key, too.",
        },
        "components": {"schemas": components, "securitySchemes": _KEYS},
        "paths": {
            path: {verb: _operation(path, described, references, model=model)}
            for path, (verb, described) in operations.items()
        },
    }


def _operation(
    path: str, described: _Described, references: Mapping[type, Any], *, model: str
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
        operation["security"] = [{name: []} for name in _KEYS]
    if "{model}" in path:
        name = {"name": "model", "in": "path", "required": True}
        operation["parameters"] = [{**name, "schema": {"type": "string", "enum": [model]}}]
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
