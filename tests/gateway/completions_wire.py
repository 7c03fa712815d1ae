"""The types of requests and replies of chat completions and completions, from which requests are
made up: those that the readers accept, and the replies of the writers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from agentgym_rl.gateway.dialects.completions import SamplingFields, Text, Zero
from agentgym_rl.gateway.request.body import StreamOptions
from tests.gateway.responses_wire import (
    AnyText,
    Count,
    JsonObject,
    JsonObjectFormat,
    PlainText,
    WebSearch,
)


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """A part that is shown as a short text, or refused (gateway.unreadable)."""

    image_url: JsonObject


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    input_audio: JsonObject


class FilePart(Struct, tag_field="type", tag="file"):
    file: JsonObject


Content = str | list[TextPart | ImagePart | AudioPart | FilePart] | None


class CalledFunction(Struct):
    name: str
    arguments: str


class Call(Struct, tag_field="type", tag="function"):
    id: str
    function: CalledFunction


class TextOfCall(Struct):
    name: str
    input: str


class TextCall(Struct, tag_field="type", tag="custom"):
    id: str
    custom: TextOfCall


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
    tool_calls: list[Call | TextCall] | None = None
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


class FunctionTool(Struct, tag_field="type", tag="function"):
    function: Function
    defer_loading: bool | None = None


class CustomGrammar(Struct):
    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(Struct, tag_field="type", tag="grammar"):
    grammar: CustomGrammar


class CustomTool(Struct):
    name: Text
    description: str | None = None
    format: AnyText | CustomFormat | None = None


class TextTool(Struct, tag_field="type", tag="custom"):
    """A tool whose call is a text."""

    custom: CustomTool


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


class CustomChoice(Struct, tag_field="type", tag="custom"):
    custom: NamedFunction


class AllowedTools(Struct):
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice | CustomChoice], Meta(min_length=1)]


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools"):
    """A list of allowed tools; with mode auto, it must contain all tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["auto", "none", "required"] | FunctionChoice | CustomChoice | AllowedChoice


class ChatCompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: str | None = None
    tools: list[FunctionTool | TextTool | WebSearch] | None = None
    tool_choice: ToolChoice | None = None
    web_search_options: JsonObject | None = None
    search_parameters: JsonObject | None = None
    """The options of a search by the service, of which there is none: it is left out."""
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    """The contrary of `continue_final_message`."""
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    """The options of a stream; they need `stream`."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    response_format: PlainText | JsonObjectFormat | SchemaFormat | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None
    logit_bias: dict[str, Zero] | None = None
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
    prompt_cache_options: Any = None
    prediction: Any = None
    verbosity: Any = None


class Usage(Struct):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class ReplyMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[Call | TextCall] | None = None
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
