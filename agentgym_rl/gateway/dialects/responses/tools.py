"""Tools of a request: functions that the client runs, perhaps grouped in namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.gateway.errors import bad_request, unsupported

Tool = dict[str, Any]

_SHOWN = ("name", "description", "parameters")
"""What of a function its model reads; `strict` is a word to the service."""


@dataclass(frozen=True, slots=True)
class Tools:
    """`functions` as chat completions write them down, `echo` as a response repeats them."""

    functions: list[Tool] = field(default_factory=list[Tool])
    echo: list[Tool] = field(default_factory=list[Tool])
    namespaces: dict[str, str] = field(default_factory=dict[str, str])
    """Of the functions that have one. Models call a function by its own name."""


def read_tools(value: Any) -> Tools:
    """Check `tools`.

    Raises:
        ApiError: 400, naming the tool.
    """
    tools = Tools()
    for item, where in _entries(value, "tools"):
        if item.get("type") != "namespace":
            tools.echo.append(_add(tools, item, where))
            continue
        name = _name(item, where)
        inner = [_add(tools, *entry) for entry in _entries(item.get("tools"), f"{where}.tools")]
        tools.namespaces.update((function["name"], name) for function in inner)
        group = {"name": name, "description": _description(item, where) or "", "tools": inner}
        tools.echo.append({"type": "namespace", **group})
    return tools


def _entries(value: Any, where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    if value is not None and not isinstance(value, list):
        raise bad_request(f"{where} must be an array.", param=where)
    for index, item in enumerate(value or ()):
        if not isinstance(item, dict):
            raise bad_request(f"{where}[{index}] must be an object.", param=f"{where}[{index}]")
        yield item, f"{where}[{index}]"


def _add(tools: Tools, item: Mapping[str, Any], where: str) -> Tool:
    """Take a function in; what is repeated of it."""
    kind = item.get("type")
    if kind != "function":
        why = f"got type {kind!r}; allowed: function (run by the client), namespace (of functions)"
        raise unsupported(where, why)
    if item.get("defer_loading"):
        raise unsupported(f"{where}.defer_loading", "all tools are shown at once")
    if not isinstance(item.get("strict"), bool | None):
        raise bad_request(f"{where}.strict must be true or false.", param=where)
    if not isinstance(item.get("parameters"), dict | None):
        raise bad_request(f"{where}.parameters must be an object.", param=where)
    name, description = _name(item, where), _description(item, where)
    if any(tool["function"]["name"] == name for tool in tools.functions):
        raise bad_request(f"{where}: there is another function named {name!r}", param=where)
    function = {key: item[key] for key in _SHOWN if item.get(key) is not None}
    tools.functions.append({"type": "function", "function": function})
    echo = {key: item.get(key) for key in ("parameters", "strict")}
    return {"type": "function", "name": name, "description": description, **echo}


def _name(item: Mapping[str, Any], where: str) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where}.name must be a string.", param=where)
    return name


def _description(item: Mapping[str, Any], where: str) -> str | None:
    description = item.get("description")
    if not isinstance(description, str | None):
        raise bad_request(f"{where}.description must be a string.", param=where)
    return description
