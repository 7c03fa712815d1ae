"""Requests of the Responses API: parameters, and input items as chat messages.

Parameters that are ignored, because they cannot change a reply here: user, metadata,
client_metadata (Codex has it), service_tier, safety_identifier, prompt_cache_key,
prompt_cache_retention, prompt_cache_options, max_tool_calls (of tools that the service itself
runs), text.verbosity, `strict` of a tool. Every other parameter is honoured or refused by name.

One sampled turn leaves as several items (thoughts, text, calls), and clients send them back in this
form. The items become one assistant message again, which the session's tree knows:

    reasoning, message, function_call, function_call, function_call_output, function_call_output
    └────────────────── assistant ──────────────────┘ └─ tool ───────────┘  └─ tool ───────────┘

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.gateway.errors import ApiError, bad_request, unsupported
from agentgym_rl.gateway.messages import TURN, call_request, reasoning_keys
from agentgym_rl.gateway.request.body import (
    boolean,
    given_fields,
    integer,
    number,
    refuse_unknown,
    string,
)
from agentgym_rl.gateway.request.chat_request import (
    ChatRequest,
    effort_kwargs,
    form_of,
    read_format,
    read_tool_choice,
)
from agentgym_rl.gateway.session.session import Session

_ID = re.compile(r"(?:msg|rs|fc)_(.*)_\d+", re.DOTALL)
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_SHOWN = ("name", "description", "parameters")
"""The fields of a function that the model sees; `strict` is only for the service."""
_IGNORED = frozenset(
    {
        *("user", "metadata", "client_metadata", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "max_tool_calls"),
    }
)
_READ = frozenset(
    {
        *("model", "input", "instructions", "previous_response_id", "store", "stream"),
        *("tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "temperature"),
        *("top_p", "text", "reasoning", "include", "truncation", "background"),
        *("stream_options", "top_logprobs"),
    }
)
_THOUGHTS = "reasoning.encrypted_content"
_PLAIN = {"type": "text"}

Message = dict[str, Any]
Tool = dict[str, Any]
NumberOf = Callable[[str], int | None]
"""A function from a turn's id to its number in the session; None for other ids."""


def item_id(kind: str, turn_id: str, index: int) -> str:
    """Return the id of an output item, which contains its turn: `kind` is msg, rs or fc."""
    return f"{kind}_{turn_id}_{index}"


def _read_items(value: Any, number_of: NumberOf) -> list[Message]:
    """Return the chat messages of `input`."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise bad_request("input must be a string or an array of items.", param="input")
    reader = _Reader(number_of)
    for index, item in enumerate(value):
        reader.read(item, f"input[{index}]")
    return reader.messages


class _Reader:
    """A reader of consecutive items; `messages` are the messages so far."""

    def __init__(self, number_of: NumberOf) -> None:
        self.messages: list[Message] = []
        self._number_of = number_of
        self._said: Message | None = None  # the assistant message that later items may extend
        self._turn: int | None = None  # the turn of this message, if an item id named it
        self._last = ""  # the kind of the last item of this message
        self._answered = False  # whether one of its calls has been answered

    def read(self, item: Any, where: str) -> None:
        if not isinstance(item, dict):
            raise bad_request(f"{where} must be an object.", param=where)
        kind = item.get("type", "message" if "role" in item else "item_reference")
        if kind == "message":
            self._message(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            answer = {"role": "tool", "tool_call_id": _string(item, "call_id", where)}
            self.messages.append({**answer, "content": _text(item.get("output"), where, "output")})
            self._answered = True
        elif kind == "reasoning":
            self._reasoning(item, where)
        else:
            allowed = ", ".join(_ITEMS)
            raise bad_request(f"{where}.type: got {kind!r}, allowed: {allowed}", param=where)

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            allowed = ", ".join(_ROLES)
            raise bad_request(f"{where}.role: got {role!r}, allowed: {allowed}", param=where)
        text = _text(item.get("content"), where, "content")
        if role != "assistant":
            self._said = None
            self.messages.append({"role": _ROLES[role], "content": text})
            return
        said = self._assistant("message", self._turn_of(item.get("id")))
        said["content"] += text

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        call_id = _string(item, "call_id", where)
        function = {name: _string(item, name, where) for name in ("name", "arguments")}
        said = self._assistant("function_call", call_request(call_id))
        call = {"id": call_id, "type": "function", "function": function}
        said.setdefault("tool_calls", []).append(call)

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        parts = item.get("content")
        text = "" if parts is None else _text(parts, where, "content")
        turn = self._turn_of(item.get("id"))
        turn = self._turn_of(item.get("encrypted_content")) if turn is None else turn
        said = self._assistant("reasoning", turn)
        said.update(reasoning_keys(said.get("reasoning", "") + text))

    def _turn_of(self, value: Any) -> int | None:
        """Return the turn that an output item's id names, if it belongs to this session."""
        found = _ID.fullmatch(value) if isinstance(value, str) else None
        return self._number_of(found[1]) if found else None

    def _assistant(self, kind: str, turn: int | None) -> Message:
        """Return the message to which an item of an assistant's turn belongs; perhaps a new one."""
        if self._said is None or not self._goes_on(kind, turn):
            self._said = {"role": "assistant", "content": ""}
            self._turn, self._answered = None, False
            self.messages.append(self._said)
        if turn is not None:
            self._turn = self._said[TURN] = turn
        self._last = kind
        return self._said

    def _goes_on(self, kind: str, turn: int | None) -> bool:
        """Return whether an item belongs to the same turn as the items before it.

        Item ids decide, if the client kept them; then calls may be answered one by one.
        Otherwise adjacent items are one turn, as far as possible: no turn has two messages
        in a row, and thoughts come first.
        """
        if turn is not None and self._turn is not None:
            return turn == self._turn
        if self._answered:
            return False
        return (
            kind == "function_call"
            or (kind == "message" and self._last != "message")
            or (kind == "reasoning" and self._last == "reasoning")
        )


def _string(item: Mapping[str, Any], name: str, where: str, *, empty: bool = True) -> str:
    """Return a string field; an empty one only if `empty`."""
    value = item.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise bad_request(f"{where}.{name} must be a string.", param=where)
    return value


def _text(value: Any, where: str, name: str) -> str:
    """Return the text of a string or of an array of text parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        raise bad_request(f"{where}.{name} must be a string or an array.", param=where)
    return "".join(_part(part, f"{where}.{name}") for part in value)


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else part
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise bad_request(f"{where}: {kind!r} part; only text is read", param=where)
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise bad_request(f"{where}: a {kind} part without text", param=where)
    return text


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request: `functions` for the template, `echo` for the response to repeat."""

    functions: list[Tool] = field(default_factory=list[Tool])
    echo: list[Tool] = field(default_factory=list[Tool])
    namespaces: dict[str, str] = field(default_factory=dict[str, str])
    """The namespaces of the functions that have one. Models call a function by its own name."""


def _read_tools(value: Any) -> Tools:
    """Check `tools`."""
    tools = Tools()
    for item, where in _entries(value, "tools"):
        if item.get("type") != "namespace":
            tools.echo.append(_add(tools, item, where))
            continue
        name = _string(item, "name", where, empty=False)
        inner = [_add(tools, *entry) for entry in _entries(item.get("tools"), f"{where}.tools")]
        tools.namespaces.update((function["name"], name) for function in inner)
        group = {"name": name, "description": _description(item, where) or "", "tools": inner}
        tools.echo.append({"type": "namespace", **group})
    return tools


def _entries(value: Any, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    if value is not None and not isinstance(value, list):
        raise bad_request(f"{where} must be an array.", param=where)
    for index, item in enumerate(value or ()):
        if not isinstance(item, dict):
            raise bad_request(f"{where}[{index}] must be an object.", param=f"{where}[{index}]")
        yield item, f"{where}[{index}]"


def _add(tools: Tools, item: Mapping[str, Any], where: str) -> Tool:
    """Add a function, and return the fields that the response repeats."""
    kind = item.get("type")
    if kind != "function":
        why = f"got type {kind!r}; allowed: function (run by the client), namespace (of functions)"
        raise unsupported(where, why)
    if item.get("defer_loading"):
        raise unsupported(f"{where}.defer_loading", "all tools are shown at once")
    if not isinstance(item.get("strict"), bool | None):
        raise bad_request(f"{where}.strict must be true or false.", param=where)
    if not isinstance(item.get("parameters"), dict | None):
        raise bad_request(f"{where}.parameters must be an object.", param=where)
    name = _string(item, "name", where, empty=False)
    description = _description(item, where)
    if any(tool["function"]["name"] == name for tool in tools.functions):
        raise bad_request(f"{where}: there is another function named {name!r}", param=where)
    function = {key: item[key] for key in _SHOWN if item.get(key) is not None}
    tools.functions.append({"type": "function", "function": function})
    echo = {key: item.get(key) for key in ("parameters", "strict")}
    return {"type": "function", "name": name, "description": description, **echo}


def _description(item: Mapping[str, Any], where: str) -> str | None:
    description = item.get("description")
    if not isinstance(description, str | None):
        raise bad_request(f"{where}.description must be a string.", param=where)
    return description


class ResponsesRequest(ChatRequest, frozen=True, kw_only=True):
    """A request that this gateway can honour in full; `messages` begin with its instructions."""

    store: bool
    """The flag that lets later requests name the response."""
    seals_thoughts: bool
    """The flag that makes reasoning items name their turn in `encrypted_content`."""
    num_instructions: int
    """The number of messages that belong to this request alone: 1 with instructions."""
    namespaces: Mapping[str, str]
    """The namespaces of the functions that have one."""
    echo: Mapping[str, Any]
    """The parameters that the response repeats."""


def read_request(session: Session, body: bytes) -> ResponsesRequest:
    """Parse and check a request."""
    given = given_fields(body)
    _refuse(given)
    tools = _read_tools(given.get("tools"))
    functions = tools.functions or None
    choice = read_tool_choice(given.get("tool_choice"), functions)
    schema = read_format(_object(given, "text").get("format", _PLAIN), "text.format", nested=False)
    one_call = not boolean(given, "parallel_tool_calls", True)
    top_p = number(given, "top_p", low=0.0, high=1.0)
    instructions = string(given, "instructions")
    leading = [] if instructions is None else [{"role": "system", "content": instructions}]
    said = _read_items(given.get("input", []), session.number_of)
    messages = [*leading, *_earlier(session, given), *said]
    if len(messages) == len(leading):
        raise bad_request("input must not be empty.", param="input")
    return ResponsesRequest(
        messages=messages,
        tools=functions,
        calls=functions is not None and choice.reads,
        one_call=one_call,
        stream=boolean(given, "stream", False),
        max_tokens=integer(given, "max_output_tokens", low=1),
        temperature=number(given, "temperature", low=0.0, high=2.0),
        top_p=1.0 if top_p is None else top_p,
        template_kwargs=effort_kwargs(
            _object(given, "reasoning").get("effort"), "reasoning.effort"
        ),
        form=form_of(choice, functions, schema, one_call=one_call, schema_param="text.format"),
        store=boolean(given, "store", True),
        seals_thoughts=_THOUGHTS in given.get("include", ()),
        num_instructions=len(leading),
        namespaces=tools.namespaces,
        echo=_echo(given, tools),
    )


def _earlier(session: Session, given: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the conversation that the request continues, if it names a response."""
    response_id = string(given, "previous_response_id")
    if response_id is None:
        return ()
    messages = session.conversations.get(response_id)
    if messages is None:
        raise ApiError(
            400,
            f"Previous response with id {response_id!r} not found: no response of this session "
            "that was stored, or one too long ago. Send the conversation as input.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return messages


def _refuse(given: Mapping[str, Any]) -> None:
    """Refuse unknown parameters, and values of known parameters that cannot be honoured."""
    refuse_unknown(given, _READ, _IGNORED)
    if boolean(given, "background", False):
        raise unsupported(
            "background", "background replies are not supported; wait for the reply, or stream it"
        )
    if given.get("truncation", "disabled") != "disabled":
        raise unsupported("truncation", "messages are never left out; allowed: 'disabled'")
    if integer(given, "top_logprobs", low=0):
        raise unsupported("top_logprobs", "only the sampled token's log-prob is recorded")
    _check_text(_object(given, "text"))
    _check_reasoning(_object(given, "reasoning"))
    _check_include(given.get("include", []))
    options = _object(given, "stream_options")
    if options and not boolean(given, "stream", False):
        raise bad_request("stream_options needs stream.", param="stream_options")
    for name, value in options.items():
        if name != "include_obfuscation" or value:
            raise unsupported(f"stream_options.{name}", "allowed: include_obfuscation false")


def _check_text(text: Mapping[str, Any]) -> None:
    for name in text:
        if name not in ("format", "verbosity"):
            raise unsupported(f"text.{name}", "this endpoint does not know it")
    if text.get("verbosity", "low") not in ("low", "medium", "high"):
        raise bad_request("text.verbosity: allowed: low, medium, high", param="text.verbosity")


def _check_reasoning(reasoning: Mapping[str, Any]) -> None:
    for name, value in reasoning.items():
        if name in ("summary", "generate_summary"):
            if value != "auto":
                why = "thoughts are sent complete, without a summary; allowed: 'auto'"
                raise unsupported(f"reasoning.{name}", why)
        elif name != "effort":
            raise unsupported(f"reasoning.{name}", "allowed: effort and summary")


def _check_include(include: Any) -> None:
    if not isinstance(include, list):
        raise bad_request("include must be an array.", param="include")
    for name in include:
        if name == "message.output_text.logprobs":
            raise unsupported(f"include {name}", "chat completions have log-probs (`logprobs`)")
        if name != _THOUGHTS:
            raise unsupported(f"include {name}", f"allowed: {_THOUGHTS}")


def _object(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object's fields that are not null; none if the object was left out."""
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object.", param=name)
    return {key: field for key, field in value.items() if field is not None}


def _echo(given: Mapping[str, Any], tools: Tools) -> dict[str, Any]:
    """Return the request parameters that the response repeats."""
    names = ("user", "safety_identifier", "prompt_cache_key")
    return {
        **{name: string(given, name) for name in names},
        "instructions": given.get("instructions"),
        "previous_response_id": given.get("previous_response_id"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": integer(given, "max_tool_calls"),
        "metadata": _metadata(given.get("metadata", {})),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "reasoning": {"effort": None, "summary": None, **_object(given, "reasoning")},
        "store": given.get("store", True),
        "text": {"format": _PLAIN, **_object(given, "text")},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": tools.echo,
        "truncation": "disabled",
    }


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise bad_request("metadata must be an object of strings.", param="metadata")
    return value
