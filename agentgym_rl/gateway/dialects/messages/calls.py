"""Arguments of tool calls, which are text to the model and an object in Anthropic's API.

A malformed call goes to the client as {"_raw": its text}: a tool call all the same, which fails
the client's own check of its arguments, so that the model is told. Arguments that are such an
object themselves are wrapped too: what comes back always means one text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentgym_rl.gateway.errors import bad_request
from agentgym_rl.gateway.parsers import ToolCall


class _Wrapped(msgspec.Struct, forbid_unknown_fields=True):
    raw: str = msgspec.field(name="_raw")


_wrapped = msgspec.json.Decoder(_Wrapped)


def input_of(call: ToolCall) -> msgspec.Raw:
    """What a client gets, as JSON: the arguments byte for byte where they are an object."""
    try:
        value: Any = None if call.malformed else msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if isinstance(value, dict) and value.keys() != {"_raw"}:
        return msgspec.Raw(call.arguments.encode())
    return msgspec.Raw(msgspec.json.encode(_Wrapped(call.arguments)))


def arguments_of(given: msgspec.Raw, where: str) -> str:
    """The text that a client's `input` stands for.

    Raises:
        ApiError: 400, it is no object.
    """
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
