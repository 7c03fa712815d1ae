"""The replies that clients send back: which reply it is, and what the client changed.

A client's schema library may fill in tool calls, which stay the same although their JSON differs:
clients parse the arguments of a call by the tool's schema, and echo the result: properties that the
model left out are there with their defaults (zod, pydantic), nulls and unknown properties are gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from agentgym_rl.core import is_dict
from agentgym_rl.gateway.messages import MessageKey, parsed_arguments, request_of, text_of
from agentgym_rl.gateway.request.offered_tools import is_text_schema, text_of_call

_MOST_REFERENCES = 16
"""The limit of a chain of references, which may be circular."""
_LATEST = 8
"""The number of latest turns that a message is compared with."""
_LEAST_LINE, _LEAST = 12, 32
"""The fewest characters of a line that is looked for, and of all such lines of a turn together:
shorter ones occur by chance."""
_MOST_LINES = 50
_SHARE = 0.5
"""The share of a turn's text that must be found: clients keep a summary, and drop the rest of the
reply (Claude Code an analysis before it)."""

Message = Mapping[str, Any]
Messages = Sequence[Message]


class Answered(Protocol):
    """A turn of the session's tree."""

    request: int
    message: Mapping[str, Any]
    key: MessageKey
    next: dict[tuple[MessageKey, ...], Any]
    delivered: bool


_Turn = TypeVar("_Turn", bound=Answered)


def rewritten(replies: Sequence[_Turn], message: Mapping[str, Any]) -> _Turn | None:
    """Return the turn whose tool-call ids a message carries although its content differs."""
    request = request_of(message)
    return next((node for node in replies if node.request == request), None)


def edit_of(
    node: Answered, message: Mapping[str, Any], key: MessageKey, tools: Messages | None
) -> Literal["args_edit", "history_edit"] | None:
    """Return how a client changed the turn that `message` names; None if it only filled in defaults
    of the schemas of `tools`."""
    if not same_calls(node.message, message, tools):
        return "args_edit"
    (_, ours, _), (_, theirs, _) = node.key, key
    return None if ours == theirs else "history_edit"


def echoed(
    same: Sequence[_Turn], message: Mapping[str, Any], behind: tuple[MessageKey, ...] | None
) -> tuple[_Turn, bool]:
    """Return which of several equal turns a client echoes, and whether that is a guess.

    The tool-call ids decide; else the exact text; else a turn that the next messages (`behind`)
    have followed before; else the last turn that reached the client.
    """
    if len(same) == 1:
        return same[0], False
    request, text = request_of(message), text_of(message.get("content"))
    for node in same:
        if node.request == request:
            return node, False
    exact = [node for node in same if text_of(node.message.get("content")) == text] or same
    if len(exact) == 1:
        return exact[0], False
    followed = [node for node in exact if behind is not None and behind in node.next]
    reached = [node for node in exact if node.delivered]
    return (followed or reached or exact)[-1], True


def until_next_reply(
    messages: Messages, keys: Sequence[MessageKey], index: int
) -> tuple[MessageKey, ...] | None:
    """Return the keys between the assistant message `index` and the next one; None if none."""
    for later in range(index + 1, len(messages)):
        if messages[later]["role"] == "assistant":
            return tuple(keys[index + 1 : later])
    return None


def restored(ours: Mapping[str, Any], echo: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sampled message, with the tool-call ids by which the client knows it."""
    theirs = echo.get("tool_calls") or ()
    if not theirs or len(theirs) != len(ours.get("tool_calls") or ()):
        return ours
    calls = zip(ours["tool_calls"], theirs, strict=True)
    return {**ours, "tool_calls": [{**call, "id": other.get("id")} for call, other in calls]}


def same_calls(ours: Message, theirs: Message, tools: Sequence[Message] | None) -> bool:
    """Return whether two messages have the same calls, with absent properties replaced by the
    defaults of the tool's schema. In objects of a schema, null counts as absent, and so do
    properties that the schema excludes."""
    mine, others = (message.get("tool_calls") or () for message in (ours, theirs))
    if len(mine) != len(others):
        return False
    functions = [tool.get("function") or {} for tool in tools or ()]
    schemas = {function.get("name"): function.get("parameters") for function in functions}
    return all(_same_call(a, b, schemas) for a, b in zip(mine, others, strict=True))


def _same_call(ours: Message, theirs: Message, schemas: Mapping[Any, Any]) -> bool:
    mine, other = (call.get("function") or {} for call in (ours, theirs))
    if mine.get("name") != other.get("name"):
        return False
    schema = schemas.get(mine.get("name")) or {}
    if is_text_schema(schema) and _text(mine) == _text(other):
        return True
    try:
        filled = [_filled(_arguments(it), schema, schema) for it in (mine, other)]
    except (ValueError, RecursionError):
        return False
    return json.dumps(filled[0], sort_keys=True) == json.dumps(filled[1], sort_keys=True)


def _text(function: Message) -> str:
    """Return the text of a call for the client of a tool that takes a text: the complete call if it
    is malformed."""
    given = function.get("arguments") or ""
    return text_of_call(given) if isinstance(given, str) else json.dumps(given)


def _arguments(function: Message) -> Any:
    """Return the JSON values of a call's arguments; raise ValueError if `parsed_arguments` does."""
    given = function.get("arguments") or "{}"
    return parsed_arguments(given) if isinstance(given, str) else _plain(given)


def _plain(value: Any) -> Any:
    """Return JSON values with all numbers as floats, as in `parsed_arguments`."""
    return json.loads(json.dumps(value), parse_int=float)


def _filled(value: Any, schema: Any, root: Message) -> Any:
    """Return a value in the form of a client that knows its schema, a part of `root`."""
    part = _resolved(schema, root, value)
    if isinstance(value, list):
        return [_filled(item, part.get("items"), root) for item in value]
    properties = part.get("properties")
    if not is_dict(value) or not is_dict(properties):
        return value
    defaults = {name: _resolved(it, root).get("default") for name, it in properties.items()}
    others = part.get("additionalProperties")
    return {
        name: _filled(item, properties.get(name, others), root)
        for name, item in {**_plain(defaults), **value}.items()
        if item is not None and (name in properties or others is not False)
    }


def _resolved(schema: Any, root: Message, value: Any = None) -> Message:
    """Return a schema with its reference followed and, for an object or array, the one alternative
    that fits it; empty if there is none, or several."""
    part = dict(schema) if is_dict(schema) else {}
    for _ in range(_MOST_REFERENCES):
        if "$ref" not in part:
            break
        part = {**_referred(part.pop("$ref"), root), **part}
    for extra in part.pop("allOf", None) or ():
        part = {**_resolved(extra, root, value), **part}
    choices = part.pop("anyOf", None) or part.pop("oneOf", None)
    if not choices or not isinstance(value, dict | list):
        return part
    found = [it for choice in choices if _fits(it := _resolved(choice, root, value), value)]
    return {**found[0], **part} if len(found) == 1 else part


def _referred(reference: Any, root: Message) -> Message:
    """Return the schema to which a reference such as `#/$defs/Range` points; empty if there is
    none."""
    found: Any = root
    for name in str(reference).removeprefix("#/").split("/"):
        found = found.get(name) if is_dict(found) else None
    return found if is_dict(found) else {}


def _fits(part: Message, value: Any) -> bool:
    """Return whether a value has the kind of an alternative, and its constants."""
    if isinstance(value, list):
        return "items" in part or part.get("type") == "array"
    properties = part.get("properties")
    if not is_dict(properties):
        return False
    wanted = {n: it["const"] for n, it in properties.items() if is_dict(it) and "const" in it}
    return all(value.get(name) == constant for name, constant in wanted.items())


def quoted(turns: Sequence[_Turn], messages: Messages) -> _Turn | None:
    """Return the latest turn whose text the messages of other roles contain, instead of its own
    message, as is the case with a summary; None if there is none."""
    texts: list[str] = []
    replies_sent = {""}
    for message in messages:
        text = text_of(message.get("content"))
        if message.get("role") == "assistant":
            replies_sent.add(text.strip())
        else:
            texts.append(text)
    text = "\n".join(texts)
    for turn in reversed(turns[-_LATEST:]):
        own = text_of(turn.message.get("content")).strip()
        if own in replies_sent:
            continue
        lines = [line.strip() for line in own.splitlines()]
        lines = [line for line in lines if len(line) >= _LEAST_LINE][:_MOST_LINES]
        total = sum(map(len, lines))
        found = sum(len(line) for line in lines if line in text)
        if total >= _LEAST and found >= _SHARE * total:
            return turn
    return None
