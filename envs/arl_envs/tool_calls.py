"""The schema and the calls of tools that take one string."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentgym_rl.core.chat import ToolSpec
from agentgym_rl.gym.tool_env import BadCall, read_call


def one_argument_tool(name: str, description: str, argument: str) -> ToolSpec:
    """Return the OpenAI function schema of a tool that takes one string."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def argument_of(call: Mapping[str, Any], *, tool: str, argument: str) -> str:
    """Return the one string that the tool is called with.

    Raises:
        BadCall: the call is of another tool or has another form.
    """
    found = read_call(call)
    if found.name != tool:
        raise BadCall(f"the only tool is {tool}")
    try:
        arguments = json.loads(found.arguments)
    except (ValueError, RecursionError) as error:
        raise BadCall("arguments are no JSON") from error
    if not isinstance(arguments, Mapping) or arguments.keys() != {argument}:
        raise BadCall(f"expected one argument, {argument}")
    if not isinstance(arguments[argument], str):
        raise BadCall(f"{argument} is no string")
    return arguments[argument]
