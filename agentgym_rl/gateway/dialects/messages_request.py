"""The requests of Anthropic Messages: their types, and their conversion to chat messages.

The published schema is made from the types. Unknown fields of blocks and tools are ignored. These
fields of the request are ignored, too, because they cannot change a reply here: metadata,
service_tier, speed, inference_geo, diagnostics, cache_control, betas.

Arguments of tool calls are text to the model and an object in Anthropic's API. A malformed call
goes to the client as {"_raw": its text}. This is still a tool call, but fails the client's own
check of its arguments, so that the model is told. Arguments that are such an object themselves are
wrapped too: a returned object always means exactly one text.

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field
from msgspec.structs import replace

from agentgym_rl.gateway.errors import ApiError, bad_request, unsupported
from agentgym_rl.gateway.messages import TURN
from agentgym_rl.gateway.parsers import ToolCall
from agentgym_rl.gateway.request.body import decode
from agentgym_rl.gateway.request.chat_request import (
    MAX_TOP_K,
    ChatRequest,
    forced_any,
    forced_tool,
    form_of,
)
from agentgym_rl.gateway.request.chat_request import ToolChoice as Choice
from agentgym_rl.gateway.session.session import Session

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
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOP_K)] | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    diagnostics: JsonObject | None = None


class _Wrapped(Struct, forbid_unknown_fields=True):
    raw: str = field(name="_raw")


_wrapped = msgspec.json.Decoder(_Wrapped)


def input_of(call: ToolCall) -> Raw:
    """Return the client's JSON for a call: the arguments byte for byte if they are an object."""
    try:
        value: Any = None if call.malformed else msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if isinstance(value, dict) and value.keys() != {"_raw"}:
        return Raw(call.arguments.encode())
    return Raw(msgspec.json.encode(_Wrapped(call.arguments)))


def _arguments_of(given: Raw, where: str) -> str:
    """Return the text of the arguments in a client's `input`."""
    data = bytes(given).strip()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise bad_request(f"{where}: {error}", param=where) from error
    if not text.startswith("{"):
        raise bad_request(f"{where}: expected an object, got {text[:40]}", param=where)
    try:
        return _wrapped.decode(text).raw
    except (msgspec.DecodeError, RecursionError):
        return text


def reply_request(session: Session, body: bytes) -> ChatRequest:
    """Parse a request to `POST /v1/messages`."""
    asked = decode(body, MessagesRequest, refused=_unsupported)
    if isinstance(asked.messages[-1], AssistantMessage):
        raise unsupported("prefill", "the last message must not be the assistant's")
    return replace(
        _request(session, asked),
        stream=bool(asked.stream),
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        top_k=asked.top_k or 0,
        stop=tuple(asked.stop_sequences or ()),
    )


def count_request(session: Session, body: bytes) -> ChatRequest:
    """Parse the request whose prompt is to be counted."""
    return _request(session, decode(body, Conversation, refused=_unsupported))


def _request(session: Session, asked: Conversation) -> ChatRequest:
    tools = [_function(tool) for tool in asked.tools] if asked.tools else None
    choice, one_call = _choice(asked, tools)
    output = asked.output_config
    schema = output.format.schema if output and output.format else None
    where = "output_config.format"
    return ChatRequest(
        messages=[*_system(asked.system), *_messages(session, asked.messages)],
        tools=tools,
        calls=tools is not None and choice.reads,
        one_call=one_call,
        template_kwargs={} if asked.thinking is None else {"enable_thinking": _thinks(asked)},
        form=form_of(choice, tools, schema, one_call=one_call, schema_param=where),
    )


def _choice(asked: Conversation, tools: Sequence[Mapping[str, Any]] | None) -> tuple[Choice, bool]:
    """Return the meaning of `tool_choice`, and whether at most one call is wanted."""
    given = asked.tool_choice
    if given is None:
        return Choice(reads=True), False
    if isinstance(given, NoneChoice):
        return Choice(reads=False), False
    one_call = bool(given.disable_parallel_tool_use)
    if isinstance(given, ToolChoice):
        return forced_tool(given.name, tools), one_call
    return forced_any(tools) if isinstance(given, AnyChoice) else Choice(reads=True), one_call


def _thinks(asked: Conversation) -> bool:
    return not isinstance(asked.thinking, ThinkingOff)


def _system(given: str | list[TextBlock] | None) -> list[dict[str, Any]]:
    return [{"role": "system", "content": _text(given)}] if given else []


def _messages(session: Session, given: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Yield chat messages; consecutive messages of one role are one turn, as in Anthropic's API."""
    for kind, run in groupby(given, key=type):
        if kind is AssistantMessage:
            yield _said(session, [block for message in run for block in _blocks(message.content)])
        elif kind is UserMessage:
            yield from _heard([block for message in run for block in _blocks(message.content)])
        else:
            yield from ({"role": "system", "content": _text(m.content)} for m in run)


def _said(session: Session, blocks: Sequence[Any]) -> dict[str, Any]:
    """Return the single message for the blocks of an assistant's turn."""
    thoughts = [block for block in blocks if isinstance(block, ThinkingBlock)]
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "".join(block.thinking for block in thoughts)
        message[TURN] = session.number_of(thoughts[-1].signature)
    return message


def _heard(blocks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield messages: each tool result is one of its own; adjacent texts are joined to one."""
    for is_result, run in groupby(blocks, key=lambda block: isinstance(block, ToolResultBlock)):
        if not is_result:
            yield {"role": "user", "content": _text(list(run))}
            continue
        for block in run:
            content = _text(block.content or "") or ("error" if block.is_error else "")
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = _arguments_of(block.input, f"input of tool_use {block.id}")
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


def _function(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _blocks(content: str | Sequence[Any]) -> Sequence[Any]:
    return [TextBlock(content)] if isinstance(content, str) else content


def _text(content: str | Sequence[Any]) -> str:
    """Join blocks as lines: clients put reminders and files into blocks of their own."""
    return "\n".join(block.text for block in _blocks(content))


def _unsupported(raw: Mapping[str, Any]) -> ApiError | None:
    """Return the error for the first field in an unreadable request that Anthropic knows and this
    gateway does not."""
    for name in _NOT_HERE:
        if raw.get(name):
            return unsupported(name, _NOT_HERE[name])
    for index, tool in enumerate(_objects(raw.get("tools"))):
        if tool.get("type") not in (None, "custom"):
            why = f"got {tool['type']!r}; only tools of the client's own, with an input_schema"
            return unsupported(f"tools[{index}].type", why)
        for name in ("strict", "defer_loading", "input_examples"):
            if tool.get(name):
                return unsupported(f"tools[{index}].{name}", "the engine has no such thing")
    for index, message in enumerate(_objects(raw.get("messages"))):
        for block in _objects(message.get("content")):
            for one in (block, *_objects(block.get("content"))):
                if one.get("type") not in _BLOCKS:
                    why = f"got a {one.get('type')!r} block, allowed: {', '.join(_BLOCKS)}"
                    return unsupported(f"messages[{index}].content", why)
    return None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_BLOCKS = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")
_NOT_HERE = {
    "mcp_servers": "connect to servers from the client, and pass their tools",
    "container": "nothing is run here",
    "output_format": "it is output_config.format now",
    "compaction": "the history is the client's to keep",
}
