"""The types of the API's bodies, used only for the published description.

Messages and completions are read into their own types (`dialects`), which are published too. The
request types here describe the input of the hand-written readers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from agentgym_rl.gateway.dialects.typed import StreamOptions
from agentgym_rl.gateway.request.chat_request import MAX_SEED, MAX_TOP_K, MIN_SEED
from agentgym_rl.gateway.template.probe import Rung

JsonObject = dict[str, Any]
Json = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
Count = Annotated[int, Meta(ge=0)]
Zero = Annotated[float, Meta(ge=0, le=0)]
Text = Annotated[str, Meta(min_length=1)]
Seed = Annotated[int, Meta(ge=MIN_SEED, le=MAX_SEED)]


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


class ChatSystemMessage(Struct, tag_field="role", tag="system"):
    content: Content
    name: str | None = None


class ChatDeveloperMessage(Struct, tag_field="role", tag="developer"):
    content: Content
    name: str | None = None


class ChatUserMessage(Struct, tag_field="role", tag="user"):
    content: Content
    name: str | None = None


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


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    pass


class ObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    pass


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
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Seed | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=4)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[JsonObject, Meta(max_length=0)] | None = None
    chat_template_kwargs: JsonObject | None = None
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
