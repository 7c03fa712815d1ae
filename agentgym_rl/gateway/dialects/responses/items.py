"""The conversion of input items to chat messages, and of a request's tools: functions that the
client runs, perhaps grouped in namespaces.

One sampled turn leaves as several items (thoughts, text, calls), and clients send them back in this
form. The items become one assistant message again, which the session's tree knows:

    reasoning, message, function_call, function_call, function_call_output, function_call_output
    └────────────────── assistant ──────────────────┘ └─ tool ───────────┘  └─ tool ───────────┘
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.gateway.errors import bad_request, unsupported
from agentgym_rl.gateway.messages import TURN, call_request, reasoning_keys

_ID = re.compile(r"(?:msg|rs|fc)_(.*)_\d+", re.DOTALL)
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")

Message = dict[str, Any]
NumberOf = Callable[[str], int | None]
"""A function from a turn's id to its number in the session; None for other ids."""


def item_id(kind: str, turn_id: str, index: int) -> str:
    """Return the id of an output item, which contains its turn: `kind` is msg, rs or fc."""
    return f"{kind}_{turn_id}_{index}"


def read_items(value: Any, number_of: NumberOf) -> list[Message]:
    """Return the chat messages of `input`.

    Raises:
        ApiError: 400, naming the item.
    """
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


def _string(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
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


Tool = dict[str, Any]

_SHOWN = ("name", "description", "parameters")
"""The fields of a function that the model sees; `strict` is only for the service."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request: `functions` for the template, `echo` for the response to repeat."""

    functions: list[Tool] = field(default_factory=list[Tool])
    echo: list[Tool] = field(default_factory=list[Tool])
    namespaces: dict[str, str] = field(default_factory=dict[str, str])
    """The namespaces of the functions that have one. Models call a function by its own name."""


def read_tools(value: Any) -> Tools:
    """Check `tools`.

    Raises:
        ApiError: 400, naming the tool.
    """
    tools = Tools()
    for item, where in _entries(value, "tools"):
        if item.get("type") != "namespace":
            tools.echo.append(_add(tools, item, where))
            continue
        name = _name(item, where)
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
    name, description = _name(item, where), _description(item, where)
    if any(tool["function"]["name"] == name for tool in tools.functions):
        raise bad_request(f"{where}: there is another function named {name!r}", param=where)
    function = {key: item[key] for key in _SHOWN if item.get(key) is not None}
    tools.functions.append({"type": "function", "function": function})
    echo = {key: item.get(key) for key in ("parameters", "strict")}
    return {"type": "function", "name": name, "description": description, **echo}


def _name(item: Mapping[str, Any], where: str) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where}.name must be a string.", param=where)
    return name


def _description(item: Mapping[str, Any], where: str) -> str | None:
    description = item.get("description")
    if not isinstance(description, str | None):
        raise bad_request(f"{where}.description must be a string.", param=where)
    return description
