"""The requests of Anthropic Messages: their types, and their conversion to chat messages.

The published schema is made from the types. Unknown fields of blocks and tools are ignored. These
fields of the request are ignored, too, because they cannot change a reply here: metadata,
service_tier, speed, inference_geo, diagnostics, cache_control, betas.

Arguments of tool calls are text to the model and an object in Anthropic's API. A malformed call
goes to the client as {"_raw": its text}. This is still a tool call, but fails the client's own
check of its arguments, so that the model gets an error. Arguments that are such an object
themselves are wrapped too: a returned object always means exactly one text.

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field, structs
from msgspec.structs import replace

from agentgym_rl.gateway import (
    ApiError,
    ChatRequest,
    Offer,
    PartReader,
    Session,
    Unreadable,
    bad_request,
    unsupported,
    without_billing,
)
from agentgym_rl.gateway.messages import TURN
from agentgym_rl.gateway.request.body import decode
from agentgym_rl.gateway.request.chat_request import MAX_TOP_K, continues
from agentgym_rl.gateway.request.client_sampling import body_left_to_session
from agentgym_rl.gateway.request.offered_tools import ToolChoice as Choice
from agentgym_rl.gateway.request.reply_form import form_of

from .messages_threads import OF_THREAD, Thread, earlier_of, fields_of, threaded

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


class ImageBlock(Struct, tag_field="type", tag="image"):
    source: JsonObject


class DocumentBlock(Struct, tag_field="type", tag="document"):
    """A document; one whose source is text is read, others are not."""

    source: JsonObject
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Struct, tag_field="type", tag="search_result"):
    source: str
    title: str
    content: list[TextBlock]


class ContainerUploadBlock(Struct, tag_field="type", tag="container_upload"):
    file_id: str


class ToolReferenceBlock(Struct, tag_field="type", tag="tool_reference"):
    """A tool that a search of the client's has found."""

    tool_name: str


Part = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock
ResultPart = Part | ToolReferenceBlock


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: Name
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None


UserBlock = Part | ContainerUploadBlock | ToolResultBlock
AssistantBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


class UserMessage(Struct, tag_field="role", tag="user"):
    content: str | Annotated[list[UserBlock], Meta(min_length=1)]


class AssistantMessage(Struct, tag_field="role", tag="assistant"):
    content: str | list[AssistantBlock]


class SystemMessage(Struct, tag_field="role", tag="system"):
    content: str | list[TextBlock]


Message = UserMessage | AssistantMessage | SystemMessage


class Tool(Struct):
    """A function of the client's, or a tool with a `type` of its own, without a schema: the shell
    and the editor become functions, the others are left out."""

    name: Name | None = None
    input_schema: JsonObject | None = None
    description: str | None = None
    type: Name | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[JsonObject] | None = None


_TOOL_SCHEMA: JsonObject = {
    "anyOf": [
        {
            "required": ["name", "input_schema"],
            "properties": {
                "type": {"enum": ["custom", None]},
                "name": {"type": "string"},
                "input_schema": {"type": "object"},
            },
        },
        {
            "required": ["type"],
            "properties": {
                "type": {"type": "string", "pattern": "_[0-9]{8}$"},
                "input_schema": {"type": "null"},
            },
        },
    ]
}


class McpServer(Struct):
    """A server that the service would connect to: it is left out."""

    name: Name


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
    tools: list[Annotated[Tool, Meta(extra_json_schema=_TOOL_SCHEMA)]] | None = None
    mcp_servers: list[McpServer] | None = None
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
    thread: Thread | None = None


class Wrapped(Struct, forbid_unknown_fields=True):
    """The arguments of a malformed call."""

    raw: str = field(name="_raw")


_wrapped = msgspec.json.Decoder(Wrapped)


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
    body, ignored = body_left_to_session(body, session.config.sampling)
    asked = decode(body, MessagesRequest, refusal=_unsupported)
    earlier = earlier_of(session, asked.thread)
    if earlier is not None:
        asked = replace(asked, **fields_of(earlier, structs.asdict(asked)))
    request = _request(session, asked, before=() if earlier is None else earlier.messages)
    if asked.thread is not None:
        created_with = {name: getattr(asked, name) for name in OF_THREAD}
        request = threaded(request, len(_system(asked.system)), created_with)
    return replace(
        request,
        ignored=ignored,
        stream=bool(asked.stream),
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        top_k=asked.top_k or 0,
        stop=tuple(asked.stop_sequences or ()),
    )


def count_request(session: Session, body: bytes) -> ChatRequest:
    """Parse the request whose prompt is to be counted."""
    body, _ = body_left_to_session(body, session.config.sampling)
    return _request(session, decode(body, Conversation, refusal=_unsupported))


def _request(
    session: Session, asked: Conversation, *, before: Sequence[Mapping[str, Any]] = ()
) -> ChatRequest:
    """Return a request; `before` are the messages that precede its own."""
    offer = _offer(asked)
    tools = offer.functions or None
    choice, one_call = _choice(asked, offer)
    output = asked.output_config
    schema = output.format.schema if output and output.format else None
    where = "output_config.format"
    form = form_of(choice, tools, schema, one_call=one_call, schema_param=where)
    messages = [*_system(asked.system), *before, *_messages(session, asked.messages)]
    return ChatRequest(
        messages=messages,
        tools=tools,
        omitted_tools=offer.omitted,
        calls=tools is not None and choice.reads,
        one_call=one_call,
        template_kwargs={} if asked.thinking is None else {"enable_thinking": _thinks(asked)},
        form=form,
        continues=continues(messages, form, asked=True),
    )


def _offer(asked: Conversation) -> Offer:
    offer = Offer()
    for index, tool in enumerate(asked.tools or ()):
        where = f"tools[{index}]"
        if tool.type not in (None, "custom"):
            given = {"type": tool.type, "name": tool.name, "input_schema": tool.input_schema}
            present = {name: value for name, value in given.items() if value is not None}
            offer.add_other(present, f"{where}.type", allowed="custom")
        elif tool.name is None or tool.input_schema is None:
            missing = "name" if tool.name is None else "input_schema"
            raise bad_request(f"{where}: a tool of the client's needs {missing}", param=where)
        elif tool.defer_loading:
            offer.omit(tool.name)
        else:
            said = _described(tool)
            offer.add({"name": tool.name, "description": said, "parameters": tool.input_schema})
    for server in asked.mcp_servers or ():
        offer.omit(server.name, "is a server to which the service would connect")
    return offer


def _described(tool: Tool) -> str | None:
    """Return a tool's description, which ends with its examples."""
    if not tool.input_examples:
        return tool.description
    examples = (msgspec.json.encode(example).decode() for example in tool.input_examples)
    return "\n".join([*([tool.description] if tool.description else []), "Examples:", *examples])


def _choice(asked: Conversation, offer: Offer) -> tuple[Choice, bool]:
    """Return the meaning of `tool_choice`, and whether at most one call is wanted."""
    given = asked.tool_choice
    if given is None:
        return Choice(reads=True), False
    if isinstance(given, NoneChoice):
        return Choice(reads=False), False
    one_call = bool(given.disable_parallel_tool_use)
    if isinstance(given, ToolChoice):
        return offer.one(given.name), one_call
    return offer.any() if isinstance(given, AnyChoice) else Choice(reads=True), one_call


def _thinks(asked: Conversation) -> bool:
    return not isinstance(asked.thinking, ThinkingOff)


def _system(given: str | list[TextBlock] | None) -> list[dict[str, Any]]:
    first, *others = _blocks(given) if given else [TextBlock("")]
    text = without_billing(first.text)
    blocks = others if first.text and not text else [TextBlock(text), *others]
    return [{"role": "system", "content": _text(blocks)}] if given and blocks else []


def _messages(session: Session, given: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Yield chat messages; consecutive messages of one role are one turn, as in Anthropic's API."""
    for kind, run in groupby(given, key=type):
        if kind is AssistantMessage:
            yield _said(session, [block for message in run for block in _blocks(message.content)])
        elif kind is UserMessage:
            blocks = [block for message in run for block in _blocks(message.content)]
            yield from _heard(blocks, session.config.unreadable)
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


def _heard(blocks: Sequence[Any], unreadable: Unreadable) -> Iterator[dict[str, Any]]:
    """Yield messages: each tool result is one of its own; adjacent texts are joined to one."""
    for is_result, run in groupby(blocks, key=lambda block: isinstance(block, ToolResultBlock)):
        if not is_result:
            yield _read("user", list(run), unreadable)
            continue
        for block in run:
            message = _read("tool", block.content or "", unreadable, id=block.tool_use_id)
            if block.is_error and not message["content"]:
                message["content"] = "error"
            yield message


def _read(
    role: str, content: str | Sequence[Any], unreadable: Unreadable, *, id: str = ""
) -> dict[str, Any]:
    """Return the message of a content in which not all blocks need be texts."""
    reader = PartReader(unreadable)
    lines = [_line(block, reader) for block in _blocks(content)]
    named = {"tool_call_id": id} if id else {}
    return reader.described({"role": role, **named, "content": "\n".join(lines)})


def _line(block: Any, reader: PartReader) -> str:
    if isinstance(block, TextBlock):
        return block.text
    return reader.text(msgspec.to_builtins(block), "messages.content") or ""


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = _arguments_of(block.input, f"input of tool_use {block.id}")
    function = {"name": block.name, "arguments": arguments}
    return {"id": block.id, "type": "function", "function": function}


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
    for index, message in enumerate(_objects(raw.get("messages"))):
        for block in _objects(message.get("content")):
            for one in (block, *_objects(block.get("content"))):
                if one.get("type") not in _BLOCKS:
                    why = f"got a {one.get('type')!r} block, allowed: {', '.join(_BLOCKS)}"
                    return unsupported(f"messages[{index}].content", why)
    return None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_BLOCKS = (
    *("text", "tool_use", "tool_result", "thinking", "redacted_thinking"),
    *("image", "document", "search_result", "container_upload", "tool_reference"),
)
_NOT_HERE = {
    "container": "nothing is run here",
    "output_format": "it is output_config.format now",
    "compaction": "the history is the client's to keep",
}
