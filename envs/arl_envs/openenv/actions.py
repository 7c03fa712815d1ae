"""The form of an action, from the JSON schema that the server gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl.core.chat import ToolSpec

TOOL = "act"
METADATA = "metadata"
"""A field of every OpenEnv action and observation that is not for the agent."""


@dataclass(frozen=True, slots=True)
class ActionForm:
    """The form of an agent's actions: the text of a reply, or calls of a tool."""

    text_field: str | None
    """The field for the text of a reply; None: actions are calls of `tool`."""
    tool: ToolSpec


def form_of(schema: Mapping[str, Any]) -> ActionForm:
    """Return the text form if the only field (or required one) is a string, else the tool form."""
    fields = {k: v for k, v in schema.get("properties", {}).items() if k != METADATA}
    required = [name for name in schema.get("required", ()) if name in fields]
    only = required if len(required) == 1 else list(fields)
    is_text = len(only) == 1 and _is_string(fields[only[0]]) and len(required) <= 1
    parameters: dict[str, Any] = {"type": "object", "properties": fields, "required": required}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    description = str(schema.get("description") or "Act in the environment.")
    function = {"name": TOOL, "description": description, "parameters": parameters}
    return ActionForm(only[0] if is_text else None, {"type": "function", "function": function})


def _is_string(field: Any) -> bool:
    return isinstance(field, Mapping) and field.get("type") == "string" and "enum" not in field
