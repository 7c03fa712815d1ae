"""What scripted agents say: assistant messages that are well formed, and junk for tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.env import ToolSpec

_MAX_DEPTH = 4


def saying(text: Any) -> dict[str, Any]:
    """An assistant message that says something."""
    return {"role": "assistant", "content": text}


def calling(*calls: tuple[str, Any], turn: int = 0) -> dict[str, Any]:
    """An assistant message that calls tools: (name, arguments), as JSON unless they are text."""
    made = [
        {
            "id": f"call_{turn}_{number}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def names_of(tools: Sequence[ToolSpec]) -> list[str]:
    """The names of tools; those that have none are left out (criterion `tools` says so)."""
    return [name for tool in tools if isinstance(name := function_of(tool).get("name"), str)]


def function_of(tool: Any) -> Mapping[str, Any]:
    """The inside of a tool's schema; empty where it has none."""
    found = tool.get("function") if isinstance(tool, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def junk_for(tool: ToolSpec) -> dict[str, Any]:
    """Arguments that fit a tool's schema and mean nothing."""
    found = _junk(function_of(tool).get("parameters"), _MAX_DEPTH)
    return found if isinstance(found, dict) else {}


def _junk(schema: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return "x"
    choices = schema.get("enum")
    if isinstance(choices, Sequence) and choices:
        return choices[0]
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), Sequence) and schema[word]:
            return _junk(schema[word][0], depth - 1)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties")
            inner = properties if isinstance(properties, Mapping) else {}
            return {name: _junk(each, depth - 1) for name, each in inner.items()}
        case "array":
            return [_junk(schema.get("items"), depth - 1)]
        case "integer" | "number":
            return max(1, schema.get("minimum", 1)) if _is_number(schema.get("minimum", 1)) else 1
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "1"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
