"""The items of the Responses API as chat messages.

One sampled turn leaves as several items (thoughts, text, calls), and clients send them back in this
form. The items are joined to one assistant message again, which is in the session's tree:

    reasoning, message, function_call, function_call, function_call_output, function_call_output
    └────────────────── assistant ──────────────────┘ └─ tool ───────────┘  └─ tool ───────────┘

All readers raise ApiError, a 400 that names the parameter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentgym_rl.gateway import PartReader, Unreadable, bad_request, without_billing
from agentgym_rl.gateway.messages import TURN, call_request, reasoning_keys
from agentgym_rl.gateway.request.offered_tools import arguments_of_text
from agentgym_rl.gateway.request.unreadable import LEFT_OUT

_ID = re.compile(r"(?:msg|rs|fc|ctc)_(.*)_\d+", re.DOTALL)
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALLS = ("function_call", "custom_tool_call")
_ANSWERS = ("function_call_output", "custom_tool_call_output")
_ITEMS = ("message", *_CALLS, *_ANSWERS, "reasoning", "item_reference", "additional_tools")
_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "additional_tools": "at",
}

Message = dict[str, Any]
Item = Mapping[str, Any]
NumberOf = Callable[[str], int | None]
"""A function from a turn's id to its number in the session; None for other ids."""
Find = Callable[[str], Item | None]
"""A function from an item's id to the stored item; None for other ids."""


def item_id(kind: str, turn_id: str, index: int) -> str:
    """Return the id of an output item, which contains its turn: `kind` is msg, rs, fc or ctc."""
    return f"{kind}_{turn_id}_{index}"


def string_field(item: Item, name: str, where: str, *, empty: bool = True) -> str:
    """Return a string field; an empty one only if `empty`."""
    value = item.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise bad_request(f"{where}.{name} must be a string.", param=where)
    return value


class ItemReader:
    """A reader of consecutive items. `messages` are the messages so far, `items` the items as they
    are stored (with an id, and a text for each part that is not text), `tools` the tools that items
    offer."""

    def __init__(self, number_of: NumberOf, find: Find, *, unreadable: Unreadable) -> None:
        self.messages: list[Message] = []
        self.items: list[Item] = []
        self.tools: list[Any] = []
        self._number_of = number_of
        self._find = find
        self._unreadable: Unreadable = unreadable
        self._said: Message | None = None  # the assistant message that later items may extend
        self._turn: int | None = None  # the turn of this message, if an item id named it
        self._last = ""  # the kind of the last item of this message
        self._answered = False  # whether one of its calls has been answered

    def read_input(self, value: Any, name: str = "input") -> None:
        """Read the value of `input`: a text or an array of items."""
        if isinstance(value, str):
            value = [{"role": "user", "content": value}]
        if not isinstance(value, list):
            raise bad_request(f"{name} must be a string or an array of items.", param=name)
        for index, item in enumerate(value):
            self.read(item, f"{name}[{index}]")

    def read(self, item: Any, where: str) -> None:
        """Read an item of a client's."""
        if not isinstance(item, dict):
            raise bad_request(f"{where} must be an object.", param=where)
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "item_reference":
            self.read_stored(self._referred(item, where))
        elif kind == "message":
            self._message(item, where)
        elif kind in _CALLS:
            self._call(item, where)
        elif kind in _ANSWERS:
            self._answer(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "additional_tools":
            self._tools(item, where)
        else:
            allowed = ", ".join(_ITEMS)
            raise bad_request(f"{where}.type: got {kind!r}, allowed: {allowed}", param=where)

    def read_stored(self, item: Item) -> None:
        """Read an item that was read before, or sampled here."""
        count = len(self.messages)
        plain = {name: value for name, value in item.items() if name != LEFT_OUT}
        self.read(plain, str(item.get("id")))
        self.items[-1] = item
        if (left_out := item.get(LEFT_OUT)) and len(self.messages) > count:
            self.messages[-1][LEFT_OUT] = left_out

    def _referred(self, item: Item, where: str) -> Item:
        name = string_field(item, "id", where)
        found = self._find(name)
        if found is None:
            raise bad_request(
                f"{where}: there is no item {name!r} in the stored responses and conversations of "
                "this session (store false, deleted, or too long ago); send the item itself",
                param=where,
                code="item_not_found",
            )
        return found

    def _keep(self, kind: str, item: Item, **shown: Any) -> None:
        """Note an item for the store, with fields as the model sees them."""
        prefix = _PREFIXES.get(kind, "fco")
        id = item.get("id")
        if not isinstance(id, str) or not id:
            named = msgspec.json.encode([len(self.items), item])  # the same each time it is sent
            id = f"{prefix}_in_{hashlib.blake2b(named, digest_size=12).hexdigest()}"
        plain = {name: value for name, value in item.items() if name != LEFT_OUT}
        self.items.append({"status": "completed", **plain, **shown, "type": kind, "id": id})

    def _message(self, item: Item, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            allowed = ", ".join(_ROLES)
            raise bad_request(f"{where}.role: got {role!r}, allowed: {allowed}", param=where)
        parts = PartReader(self._unreadable)
        text = _text(item.get("content"), where, "content", parts)
        text = without_billing(text) if _ROLES[role] == "system" else text
        part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        part |= {"annotations": []} if role == "assistant" else {}
        self._keep("message", item, role=role, content=[part], **parts.described({}))
        if role != "assistant":
            self._said = None
            self.messages.append(parts.described({"role": _ROLES[role], "content": text}))
            return
        said = self._assistant("message", self._turn_of(item.get("id")))
        said["content"] += text
        said.update(parts.described({}))

    def _call(self, item: Item, where: str) -> None:
        call_id, name = (string_field(item, field, where) for field in ("call_id", "name"))
        if item["type"] == "function_call":
            arguments = string_field(item, "arguments", where)
        else:
            arguments = arguments_of_text(string_field(item, "input", where))
        function = {"name": name, "arguments": arguments}
        said = self._assistant("function_call", call_request(call_id))
        call = {"id": call_id, "type": "function", "function": function}
        said.setdefault("tool_calls", []).append(call)
        self._keep(item["type"], item)

    def _answer(self, item: Item, where: str) -> None:
        answer = {"role": "tool", "tool_call_id": string_field(item, "call_id", where)}
        parts = PartReader(self._unreadable)
        text = _text(item.get("output"), where, "output", parts)
        self.messages.append(parts.described({**answer, "content": text}))
        self._answered = True
        self._keep(item["type"], item, output=text, **parts.described({}))

    def _reasoning(self, item: Item, where: str) -> None:
        content = item.get("content")
        parts = PartReader("refuse")
        text = "" if content is None else _text(content, where, "content", parts)
        turn = self._turn_of(item.get("id"))
        turn = self._turn_of(item.get("encrypted_content")) if turn is None else turn
        said = self._assistant("reasoning", turn)
        said.update(reasoning_keys(said.get("reasoning", "") + text))
        self._keep("reasoning", item)

    def _tools(self, item: Item, where: str) -> None:
        tools = item.get("tools")
        if not isinstance(tools, list):
            raise bad_request(f"{where}.tools must be an array.", param=where)
        self.tools += tools
        self._keep("additional_tools", item)

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


def _text(value: Any, where: str, name: str, parts: PartReader) -> str:
    """Return the text of a string or of an array of parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise bad_request(f"{where}.{name} must be a string or an array.", param=where)
    return "".join(_part(part, f"{where}.{name}", parts) for part in value)


def _part(part: Any, where: str, parts: PartReader) -> str:
    kind = part.get("type") if isinstance(part, dict) else part
    if kind not in _TEXT_PARTS:
        other = parts.text(part, where)
        if other is None:
            known = f"allowed: {', '.join(_TEXT_PARTS)}, and images, files and audio"
            raise bad_request(f"{where}: got a {kind!r:.100} part, {known}", param=where)
        return other
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise bad_request(f"{where}: a {kind} part without text", param=where)
    return text
