"""What a model made of a message and its tool calls, however malformed they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core.chat import Message


class BadCall(ValueError):
    """A call that cannot be carried out; says what is wrong and what is expected."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has a name; whether there is such a tool is another question."""

    name: str
    arguments: str
    """JSON, perhaps: it is not read yet."""


def text_of(message: Message) -> str:
    """The text of a message, be its content a string, absent, or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def listed(calls: Any) -> list[Mapping[str, Any]]:
    """The calls of a message; what is no mapping becomes an empty one."""
    many = calls if isinstance(calls, list) else [calls]
    return [call if isinstance(call, Mapping) else {} for call in many]


def read_call(call: Mapping[str, Any]) -> Call:
    """The name and the arguments of a call; arguments that came as an object become JSON again.

    Raises:
        BadCall: it has no name, or arguments of another kind.
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
    """The tool message that answers a call."""
    call_id = call.get("id")
    call_id = call_id if isinstance(call_id, str) else ""
    return {"role": "tool", "tool_call_id": call_id, "content": content}
