"""The types of requests and replies of the Responses API, from which requests are made up: what
the reader accepts (messages may also omit their `type`), and what the writer sends."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from arl_dialects.responses import Status
from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1)]
JsonObject = dict[str, Any]
Never = Annotated[bool, Meta(extra_json_schema={"const": False})]


class InputText(Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(Struct, tag_field="type", tag="input_file"):
    filename: str | None = None
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None


class InputAudio(Struct, tag_field="type", tag="input_audio"):
    input_audio: JsonObject


Text = str | list[InputText | OutputText | InputImage | InputFile | InputAudio]
"""A text, or parts; those that are no text are shown as a short text, or refused."""


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


class CustomToolCall(Struct, tag_field="type", tag="custom_tool_call"):
    call_id: str
    name: str
    input: str
    id: str | None = None


class CustomToolCallOutput(Struct, tag_field="type", tag="custom_tool_call_output"):
    call_id: str
    output: Text


class ItemReference(Struct, tag_field="type", tag="item_reference"):
    """An item of a stored response or conversation."""

    id: str


class Reasoning(Struct, tag_field="type", tag="reasoning"):
    id: str | None = None
    summary: list[JsonObject] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class Function(Struct, tag_field="type", tag="function"):
    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    """The flag of a function that is left out, since there is no search for it."""


class AnyText(Struct, tag_field="type", tag="text"):
    pass


class Grammar(Struct, tag_field="type", tag="grammar"):
    """A grammar that the model is shown, and that nothing enforces."""

    syntax: Literal["lark", "regex"]
    definition: str


class Custom(Struct, tag_field="type", tag="custom"):
    """A tool whose call is a text."""

    name: Name
    description: str | None = None
    format: AnyText | Grammar | None = None
    defer_loading: bool | None = None


class WebSearch(Struct, tag_field="type", tag="web_search"):
    """One of the tools that the service would run: any other type without a schema is left out of
    the prompt, too."""


class Namespace(Struct, tag_field="type", tag="namespace"):
    """A group of tools, offered under their own names, which must be unique among all."""

    name: Name
    description: str | None = None
    tools: list[Function | Custom] | None = None


class AdditionalTools(Struct, tag_field="type", tag="additional_tools"):
    tools: list[Function | Custom | Namespace | WebSearch]
    role: str | None = None
    id: str | None = None


Item = (
    Message
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | Reasoning
    | ItemReference
    | AdditionalTools
)


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


class CustomChoice(Struct, tag_field="type", tag="custom"):
    name: str


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools"):
    """A list of allowed tools; with mode auto, it must contain all tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice | CustomChoice], Meta(min_length=1)]


ToolChoice = Literal["auto", "none", "required"] | FunctionChoice | CustomChoice | AllowedChoice


class TextOptions(Struct, forbid_unknown_fields=True):
    format: PlainText | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Struct, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_obfuscation: Never | None = None


class ConversationId(Struct):
    id: str


Included = Literal[
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
]
Truncation = Literal["auto", "disabled"]


class CreateResponse(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/responses`."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    model: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationId | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    """The options of a stream; they need `stream`."""
    tools: list[Function | Custom | Namespace | WebSearch] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Included] | None = None
    truncation: Truncation | None = None
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


class SaidTextCall(Struct, tag_field="type", tag="custom_tool_call"):
    id: str
    call_id: str
    name: str
    input: str
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
    output: list[SaidMessage | SaidCall | SaidTextCall | SaidReasoning]
    usage: Usage
    instructions: str | None
    previous_response_id: str | None
    conversation: ConversationId | None
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
    truncation: Truncation
    background: bool
    service_tier: str
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class ConversationObject(Struct, tag_field="object", tag="conversation"):
    id: str
    created_at: Count
    metadata: dict[str, str]


class CreateConversation(Struct, forbid_unknown_fields=True):
    items: Annotated[list[Item], Meta(max_length=20)] | None = None
    metadata: dict[str, str] | None = None
