"""The parsing of a model's message and its tool calls, however malformed they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core.chat import Message


class BadCall(ValueError):
    """The error of a call that cannot be executed; states the problem and the expected form."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call with a name; the tool may not exist."""

    name: str
    arguments: str
    """The arguments, not yet parsed; they may be invalid JSON."""


def text_of(message: Message) -> str:
    """Return the text of a message with a string, a list of parts or nothing as its content."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def listed(calls: Any) -> list[Mapping[str, Any]]:
    """Return the calls of a message as a list; an item that is no mapping becomes an empty one."""
    many = calls if isinstance(calls, list) else [calls]
    return [call if isinstance(call, Mapping) else {} for call in many]


def read_call(call: Mapping[str, Any]) -> Call:
    """Return the name and the arguments of a call; arguments given as an object become JSON.

    Raises:
        BadCall: the call has no name, or its arguments have another type.
    """
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise BadCall("no function")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise BadCall("the name of the function is no string")
    if isinstance(arguments, Mapping):
        try:
            arguments = json.dumps(arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadCall("arguments are no JSON") from error
    if not isinstance(arguments, str):
        raise BadCall("arguments are no JSON object")
    return Call(name, arguments)


def reply_to(call: Mapping[str, Any], content: str) -> Message:
    """Return the tool message that answers a call."""
    call_id = call.get("id")
    call_id = call_id if isinstance(call_id, str) else ""
    return {"role": "tool", "tool_call_id": call_id, "content": content}
