"""The forms of messages and tools in OpenAI's chat API; a problem is a sentence, none is ""."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")
_PARTS = {"text": "text", "image_url": "image_url", "input_audio": "input_audio", "file": "file"}
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def json_problem(value: Any) -> str:
    """Return the reason why `value` cannot be sent as JSON in UTF-8."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError as error:
        return f"no Unicode text: {error.object[error.start : error.end]!r} is a lone surrogate"
    except (TypeError, ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    return "" if json.loads(text) == value else "JSON changes it: keys must be text, no tuples"


def messages_problem(messages: Iterable[Any], roles: Sequence[str] = ROLES) -> str:
    """Return the fault of the first message that is not a valid message of one of `roles`."""
    for index, message in enumerate(messages):
        if problem := message_problem(message, roles):
            return f"message {index}: {problem} (it is {message!r:.120})"
    return ""


def message_problem(message: Any, roles: Sequence[str]) -> str:
    """Return the fault of a message."""
    if not isinstance(message, Mapping):
        return f"got {type(message).__name__}, expected a mapping"
    role = message.get("role")
    if role not in roles:
        return f"role {role!r}; allowed: {', '.join(roles)}"
    if problem := json_problem(dict(message)):
        return problem
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return f"tool_call_id {message.get('tool_call_id')!r}; expected the id of a call"
    return _content_problem(message.get("content"), optional=role == "assistant")


def _content_problem(content: Any, *, optional: bool) -> str:
    if isinstance(content, str) or (content is None and optional):
        return ""
    if not isinstance(content, list):
        return f"content {content!r:.60}; expected text or a list of parts"
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _PARTS or _PARTS[kind] not in part:
            return f"content part {part!r:.60}; expected one with a type of {', '.join(_PARTS)}"
        if kind == "text" and not isinstance(part["text"], str):
            return f"content part {part!r:.60}; expected text as its text"
    return ""


def tools_problem(tools: Any) -> str:
    """Return the fault of the tools that an environment offers."""
    if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
        return f"env.tools is {type(tools).__name__}, expected a list of function schemas"
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if problem := _tool_problem(tool):
            return f"tool {index}: {problem}"
        name = tool["function"]["name"]
        if name in names:
            return f"tool {index}: there are two called {name!r}"
        names.add(name)
    return ""


def _tool_problem(tool: Any) -> str:
    form = 'expected {"type": "function", "function": {"name", "description", "parameters"}}'
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return f"got {tool!r:.80}, {form}"
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return f"function is {function!r:.60}, {form}"
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"name {name!r}; allowed: 1 to 64 of a-z, A-Z, 0-9, _ and -"
    if not isinstance(function.get("description", ""), str):
        return f"{name}: description is {function['description']!r:.60}, expected text"
    if problem := json_problem(dict(tool)):
        return f"{name}: {problem}"
    parameters = function.get("parameters", {"type": "object"})
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        return f'{name}: parameters {parameters!r:.80}; expected a schema of type "object"'
    return f"{name}: {problem}" if (problem := _schema_problem(parameters, "parameters")) else ""


def _schema_problem(schema: Any, where: str) -> str:
    """Return the fault of the JSON Schema keywords that chat templates and servers read."""
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, Mapping):
        return f"{where} is {schema!r:.60}, expected a JSON Schema"
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _TYPES:
            return f"{where} has type {kind!r}; allowed: {', '.join(_TYPES)}"
    if not isinstance(schema.get("enum", []), list):
        return f"{where}.enum is no list"
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return f"{where}: properties must be a table and required a list"
    if missing := [name for name in required if name not in properties]:
        return f"{where} requires {missing}, which properties do not have"
    inner = [(f"{where}.{name}", each) for name, each in properties.items()]
    inner += [(f"{where}.items", schema["items"])] if "items" in schema else []
    return next((p for at, each in inner if (p := _schema_problem(each, at))), "")
