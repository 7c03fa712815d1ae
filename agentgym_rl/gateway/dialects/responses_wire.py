"""The types of requests and replies of the Responses API, for a published description: the input
the reader accepts (messages may also omit their `type`) and the output of the writer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1)]
JsonObject = dict[str, Any]
Never = Annotated[bool, Meta(extra_json_schema={"const": False})]
Status = Literal["completed", "incomplete"]


class InputText(Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


Text = str | list[InputText | OutputText]


class Message(Struct, tag_field="type", tag="message"):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    id: str | None = None


class FunctionCall(Struct, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | None = None


class FunctionCallOutput(Struct, tag_field="type", tag="function_call_output"):
    call_id: str
    output: Text


class Reasoning(Struct, tag_field="type", tag="reasoning"):
    id: str | None = None
    summary: list[JsonObject] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


Item = Message | FunctionCall | FunctionCallOutput | Reasoning


class Function(Struct, tag_field="type", tag="function"):
    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    defer_loading: Never | None = None


class Namespace(Struct, tag_field="type", tag="namespace"):
    """A group of functions, offered under their own names, which must be unique among all."""

    name: Name
    description: str | None = None
    tools: list[Function] | None = None


class PlainText(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    pass


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    name: str
    schema: JsonObject | None = None
    description: str | None = None
    strict: bool | None = None


class FunctionChoice(Struct, tag_field="type", tag="function"):
    name: str


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools"):
    """A list of allowed tools; with mode auto, it must contain all tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Meta(min_length=1)]


ToolChoice = Literal["auto", "none", "required"] | FunctionChoice | AllowedChoice


class TextOptions(Struct, forbid_unknown_fields=True):
    format: PlainText | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Struct, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_obfuscation: Never | None = None


class CreateResponse(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/responses`."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    model: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    """The options of a stream; they need `stream`."""
    tools: list[Function | Namespace] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    truncation: Literal["disabled"] | None = None
    background: Never | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    max_tool_calls: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    client_metadata: Any = None
    service_tier: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None


class SaidText(Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class SaidMessage(Struct, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"]
    status: Status
    content: list[SaidText]


class SaidCall(Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status
    namespace: str | None = None


class SaidReasoning(Struct, tag_field="type", tag="reasoning"):
    id: str
    summary: list[Any]
    content: list[ReasoningText]
    status: Status
    encrypted_content: str | None = None


class CachedTokens(Struct):
    cached_tokens: Count
    cache_write_tokens: Count


class ReasoningTokens(Struct):
    reasoning_tokens: Count


class Usage(Struct):
    input_tokens: Count
    input_tokens_details: CachedTokens
    output_tokens: Count
    output_tokens_details: ReasoningTokens
    total_tokens: Count


class WhyIncomplete(Struct):
    reason: Literal["max_output_tokens", "content_filter"]


class Response(Struct, tag_field="object", tag="response"):
    """A reply that is not streamed."""

    id: str
    created_at: Count
    completed_at: Count | None
    status: Status
    incomplete_details: WhyIncomplete | None
    error: None
    model: str
    output: list[SaidMessage | SaidCall | SaidReasoning]
    usage: Usage
    instructions: str | None
    previous_response_id: str | None
    store: bool
    tools: list[JsonObject]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    max_output_tokens: int | None
    max_tool_calls: int | None
    temperature: float
    top_p: float
    top_logprobs: Count
    text: JsonObject
    reasoning: JsonObject
    truncation: Literal["disabled"]
    background: bool
    service_tier: str
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
