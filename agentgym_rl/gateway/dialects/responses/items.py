"""Input items as chat messages.

One sampled turn leaves as several items (thoughts, text, calls), and clients send them back as
such. They become one assistant message again, the one the session's tree knows:

    reasoning, message, function_call, function_call, function_call_output, function_call_output
    └────────────────── assistant ──────────────────┘ └─ tool ───────────┘  └─ tool ───────────┘
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.gateway.errors import bad_request
from agentgym_rl.gateway.messages import reasoning_keys

_OUR_ID = re.compile(r"(?:msg|rs|fc)_.*-(\d{1,18})_\d+", re.DOTALL)
_OUR_CALL = re.compile(r"call_(\d{1,18})_\d+")
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")

Message = dict[str, Any]


def item_id(kind: str, turn_id: str, index: int) -> str:
    """The id of an output item, which tells which turn it is of: `kind` is msg, rs or fc."""
    return f"{kind}_{turn_id}_{index}"


def read_items(value: Any) -> list[Message]:
    """The chat messages that `input` says.

    Raises:
        ApiError: 400, naming the item.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise bad_request("input must be a string or an array of items.", param="input")
    reader = _Reader()
    for index, item in enumerate(value):
        reader.read(item, f"input[{index}]")
    return reader.messages


class _Reader:
    """Reads items one after the other; `messages` are those so far."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._said: Message | None = None  # the assistant message that may go on
        self._turn: int | None = None  # the turn it is of, if an id told
        self._last = ""  # the kind of its last item
        self._answered = False  # whether one of its calls is answered by now

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
        said = self._assistant("message", _turn_of(item.get("id")))
        said["content"] += text

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        call_id = _string(item, "call_id", where)
        function = {name: _string(item, name, where) for name in ("name", "arguments")}
        found = _OUR_CALL.fullmatch(call_id)
        said = self._assistant("function_call", int(found[1]) if found else None)
        call = {"id": call_id, "type": "function", "function": function}
        said.setdefault("tool_calls", []).append(call)

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        parts = item.get("content")
        text = "" if parts is None else _text(parts, where, "content")
        turn = _turn_of(item.get("id"))
        turn = _turn_of(item.get("encrypted_content")) if turn is None else turn
        said = self._assistant("reasoning", turn)
        said.update(reasoning_keys(said.get("reasoning", "") + text))

    def _assistant(self, kind: str, turn: int | None) -> Message:
        """The message that an item of an assistant's turn is a part of; perhaps a new one."""
        if self._said is None or not self._goes_on(kind, turn):
            self._said = {"role": "assistant", "content": ""}
            self._turn, self._answered = None, False
            self.messages.append(self._said)
        self._turn = self._turn if turn is None else turn
        self._last = kind
        return self._said

    def _goes_on(self, kind: str, turn: int | None) -> bool:
        """Whether an item is of the same turn as those before it.

        Ids tell, for those who kept them; then calls may be answered one by one. Otherwise what
        stands together is one turn, as far as it can be: no turn has two messages in a row, and
        thoughts come first.
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


def _turn_of(value: Any) -> int | None:
    """The turn that an id of ours names."""
    found = _OUR_ID.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found else None


def _string(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{where}.{name} must be a string.", param=where)
    return value


def _text(value: Any, where: str, name: str) -> str:
    """Text, or an array of parts that are text."""
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
