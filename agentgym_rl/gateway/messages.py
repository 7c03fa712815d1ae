"""The content of chat messages, independent of how a client writes it.

Clients reformat the messages that they echo: null or "" content, arrays of text parts, arguments
with other spacing or key order, trailing newlines, thoughts omitted or put before the text, fields
of their own. Two messages with equal keys are the same message; any other difference is an edit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.gateway.request.body import has_many_values

MessageKey = tuple[Any, ...]
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The field names for a model's thoughts in clients and templates."""
TURN = "turn"
"""The field in which a dialect keeps the number of the request in which an assistant message was
sampled."""
_THOUGHT_END = "</think>"
_BILLING = "x-anthropic-billing-header:"


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, null, or an array of text parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or ())


def without_billing(text: str) -> str:
    """Return a system text without the first line that Claude Code adds for its own service: the
    line is not meant for the model, and changes in the middle of a conversation."""
    if not text.startswith(_BILLING):
        return text
    return text.partition("\n")[2]


def message_key(message: Mapping[str, Any]) -> MessageKey:
    """Return the identity of a message, without reasoning, tool-call ids and foreign fields."""
    role = message["role"]
    if role == "assistant":
        calls = tuple(_call_key(call) for call in message.get("tool_calls") or ())
        return role, without_thoughts(text_of(message.get("content"))).strip(), calls
    text = text_of(message.get("content")).rstrip()
    return role, text, message.get("name"), message.get("tool_call_id")


def without_thoughts(text: str) -> str:
    """Return an assistant's text without the thoughts that some templates and clients put first."""
    return text.rpartition(_THOUGHT_END)[2]


def thoughts_of(message: Mapping[str, Any]) -> str:
    """Return the model's thoughts in an assistant message, or ""."""
    named = next((message[name] for name in REASONING if message.get(name)), None)
    if isinstance(named, str):
        return named.strip()
    thought, ended, _ = text_of(message.get("content")).rpartition(_THOUGHT_END)
    return thought.replace("<think>", "", 1).strip() if ended else ""


def with_thoughts(message: Mapping[str, Any], thoughts: str) -> Mapping[str, Any]:
    """Return an assistant message whose thoughts, if it has any, are replaced by `thoughts`."""
    before = thoughts_of(message)
    if not before:
        return message
    named = {name: thoughts for name in REASONING if message.get(name)}
    if named:
        return {**message, **named}
    return {**message, "content": text_of(message["content"]).replace(before, thoughts, 1)}


def num_leading(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many system messages a conversation begins with."""
    roles = (index for index, message in enumerate(messages) if message["role"] != "system")
    return next(roles, len(messages))


def root_key(
    leading: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any],
) -> str:
    """Return a hash of all input before a conversation: an agent has one, and each of its helpers
    another.

    The key order in tools and arguments does not count.
    """
    system = [message_key(message) for message in leading]
    whole = json.dumps([system, tools or None, template_kwargs], sort_keys=True)
    return hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def parsed_arguments(text: str) -> Any:
    """Return the JSON values of a call's arguments, with all numbers as floats.

    Raises:
        ValueError: they are not JSON, or would take too long to read.
    """
    if has_many_values(text):
        raise ValueError("the arguments have too many values")
    # JavaScript clients write 1.0 as 1, and round numbers that are too long for a double
    return json.loads(text, parse_int=float)


def _call_key(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call.get("function") or {}
    arguments = function.get("arguments") or ""
    if isinstance(arguments, str):
        try:
            arguments = parsed_arguments(arguments)
        except (ValueError, RecursionError):
            return function.get("name") or "", arguments.strip()
    return function.get("name") or "", json.dumps(arguments, sort_keys=True)


def reasoning_keys(text: str) -> dict[str, str]:
    """Return thoughts as keys of a message or delta, under both known names; none for ""."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


def call_id(request: int, position: int, own: str = "") -> str:
    """Return a tool-call id that names the request of its sample; clients must echo it. `own`: the
    id that the model wrote, if its format has ids; its template must write the same."""
    return f"call_{request}_{position}" + (f":{own}" if own else "")


def own_id(call_id: Any) -> Any:
    """Return the id that the model wrote, if this gateway's id has one; else the id itself."""
    ours, _, own = call_id.partition(":") if isinstance(call_id, str) else ("", "", "")
    return own if own and call_request(ours) is not None else call_id


def request_of(message: Mapping[str, Any]) -> int | None:
    """Return the number of the request in which an assistant message was sampled, from its field
    `TURN` or from the ids of its tool calls; None if this gateway set neither."""
    noted = message.get(TURN)
    if isinstance(noted, int):
        return noted
    numbers = (call_request(call.get("id")) for call in message.get("tool_calls") or ())
    return next((number for number in numbers if number is not None), None)


def call_request(call_id: Any) -> int | None:
    """Return the request that a tool-call id of this gateway names; None for other ids."""
    parts = str(call_id).partition(":")[0].split("_")
    ours = len(parts) == 3 and parts[0] == "call" and parts[1].isdecimal() and len(parts[1]) < 16
    return int(parts[1]) if ours else None
