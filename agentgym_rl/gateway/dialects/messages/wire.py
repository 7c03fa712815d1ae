"""The types of Anthropic Messages requests, from which the published schema is made.

Unknown fields of blocks and tools are ignored. These fields of the request are ignored, too,
because they cannot change a reply here: metadata, service_tier, speed, inference_geo, diagnostics,
cache_control, betas.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

Name = Annotated[str, Meta(min_length=1)]
JsonObject = dict[str, Any]


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""
    """The id of the turn in which the thought was sampled, if it was sampled here."""


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    data: str = ""
    """The encrypted thought, which this gateway cannot read."""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: Name
    name: str
    input: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: Name
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


UserBlock = TextBlock | ToolResultBlock
AssistantBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


class UserMessage(Struct, tag_field="role", tag="user"):
    content: str | Annotated[list[UserBlock], Meta(min_length=1)]


class AssistantMessage(Struct, tag_field="role", tag="assistant"):
    content: str | list[AssistantBlock]


class SystemMessage(Struct, tag_field="role", tag="system"):
    content: str | list[TextBlock]


Message = UserMessage | AssistantMessage | SystemMessage


class Tool(Struct):
    """A function that the client runs; tools that Anthropic's servers run are refused."""

    name: Name
    input_schema: JsonObject
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: Literal[False] | None = None
    defer_loading: Literal[False] | None = None
    input_examples: Annotated[list[JsonObject], Meta(max_length=0)] | None = None


class AutoChoice(Struct, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool | None = None


class ToolChoice(Struct, tag_field="type", tag="tool"):
    name: Name
    disable_parallel_tool_use: bool | None = None


class NoneChoice(Struct, tag_field="type", tag="none"):
    pass


class ThinkingOn(Struct, tag_field="type", tag="enabled"):
    budget_tokens: int | None = None


class ThinkingAdaptive(Struct, tag_field="type", tag="adaptive"):
    pass


class ThinkingOff(Struct, tag_field="type", tag="disabled"):
    pass


class KeptThinking(Struct, tag_field="type", tag="clear_thinking_20251015"):
    """An edit of the history that clears nothing."""

    keep: Literal["all"]


class ContextManagement(Struct):
    edits: list[KeptThinking] = []


class JsonFormat(Struct, tag_field="type", tag="json_schema"):
    schema: JsonObject


class OutputConfig(Struct):
    effort: str | None = None
    format: JsonFormat | None = None


class Conversation(Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation as `count_tokens` reads it."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolChoice | NoneChoice | None = None
    thinking: ThinkingOn | ThinkingAdaptive | ThinkingOff | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    cache_control: JsonObject | None = None
    speed: str | None = None
    betas: list[str] | None = None


class MessagesRequest(Conversation, kw_only=True, forbid_unknown_fields=True):
    """A request for a reply."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: (
        Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)] | None
    ) = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    diagnostics: JsonObject | None = None
