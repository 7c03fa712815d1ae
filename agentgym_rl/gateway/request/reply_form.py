"""The form that a request demands of a reply: JSON of a schema, or calls of some of the tools.

Three APIs express the same demand in three ways; here they become one `ReplyForm`. Its grammar
depends on the model's format (`parsers.grammars`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_rl.gateway.errors import bad_request, unsupported

Tools = Sequence[Mapping[str, Any]]
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """A demand for JSON of `schema`, or for calls of `tools`; if both are given, one of the two.

    `one_call`: the reply makes a single call. Thoughts may come before either.
    """

    schema: Mapping[str, Any] | None = None
    tools: Tools = ()
    one_call: bool = False
    param: str = ""
    """The parameter of the demand, for errors."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The meaning of `tool_choice` in any API: calls are read (`reads`), and of the `forced` tools
    at least one must be called, or exactly one (`single`)."""

    reads: bool
    forced: Tools | None = None
    single: bool = False


def form_of(
    choice: ToolChoice,
    tools: Tools | None,
    schema: Mapping[str, Any] | None,
    *,
    one_call: bool,
    schema_param: str,
) -> ReplyForm | None:
    """Return the demanded form; None if the reply is free. A forced call excludes content."""
    if choice.forced is not None:
        single = one_call or choice.single
        return ReplyForm(tools=choice.forced, one_call=single, param="tool_choice")
    if schema is None:
        return None
    callable_tools = (tools or ()) if choice.reads else ()
    return ReplyForm(schema, callable_tools, one_call, schema_param)


def read_tool_choice(given: Any, tools: Tools | None) -> ToolChoice:
    """Parse OpenAI's `tool_choice`, of chat completions or Responses; None is "auto".

    Raises:
        ApiError: 400, the value is invalid, or names a tool that is not offered.
    """
    if given in (None, "auto"):
        return ToolChoice(reads=True)
    if given == "none":
        return ToolChoice(reads=False)
    if given == "required":
        return ToolChoice(True, forced=_offered(tools))
    kind = given.get("type") if isinstance(given, dict) else given
    if kind == "function":
        return forced_tool(_name_of(given), tools)
    if kind == "allowed_tools":
        return _allowed(given.get("allowed_tools", given), tools)
    allowed = "'auto', 'none', 'required', and objects of type 'function' or 'allowed_tools'"
    raise unsupported("tool_choice", f"got {given!r}, allowed: {allowed}")


def forced_tool(name: str, tools: Tools | None) -> ToolChoice:
    """Return a choice of exactly one call of the tool `name`.

    Raises:
        ApiError: 400, there is no such tool.
    """
    return ToolChoice(True, forced=_named([name], tools), single=True)


def forced_any(tools: Tools | None) -> ToolChoice:
    """Return a choice of at least one call of any tool.

    Raises:
        ApiError: 400, no tools are offered.
    """
    return ToolChoice(True, forced=_offered(tools))


def schema_of(given: Any, param: str) -> Mapping[str, Any]:
    """Return a client's JSON schema. The engine reports whether it can enforce the schema.

    Raises:
        ApiError: 400, the schema is not an object.
    """
    if not isinstance(given, dict):
        raise bad_request(f"{param} must be a JSON schema, an object.", param=param)
    return given


def read_format(given: Any, param: str, *, nested: bool) -> Mapping[str, Any] | None:
    """Return the schema in OpenAI's `response_format` or `text.format`; None: any text.

    `nested`: the schema stands in a `json_schema` object, as in chat completions.

    Raises:
        ApiError: 400, the format is invalid.
    """
    kind = given.get("type") if isinstance(given, dict) else given
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise unsupported(param, f"got {kind!r}, allowed: text, json_schema, json_object")
    where = f"{param}.json_schema" if nested else param
    holder = given.get("json_schema") if nested else given
    if not isinstance(holder, dict) or not isinstance(holder.get("name"), str):
        raise bad_request(f"{where}.name must be a string.", param=where)
    schema = holder.get("schema")
    return ANY_OBJECT if schema is None else schema_of(schema, f"{where}.schema")


def _allowed(given: Any, tools: Tools | None) -> ToolChoice:
    mode = given.get("mode") if isinstance(given, dict) else None
    if mode not in ("auto", "required"):
        why = f"tool_choice.allowed_tools.mode: got {mode!r}, allowed: 'auto', 'required'"
        raise bad_request(why, param="tool_choice")
    listed = given.get("tools")
    if not isinstance(listed, list) or not listed:
        raise bad_request("tool_choice.allowed_tools.tools lists no tools.", param="tool_choice")
    chosen = _named([_name_of(tool) for tool in listed], tools)
    if mode == "required":
        return ToolChoice(True, forced=chosen)
    if len(chosen) < len(tools or ()):
        raise unsupported(
            "tool_choice.allowed_tools",
            "with mode 'auto' all tools must be allowed: a reply that is free to be text is not "
            "held to any grammar; use mode 'required', or offer fewer tools",
        )
    return ToolChoice(True)


def _name_of(given: Mapping[str, Any]) -> str:
    """Return the name, which stands in `function` (chat completions) or beside the type."""
    holder = given.get("function", given) if isinstance(given, dict) else None
    name = holder.get("name") if isinstance(holder, dict) else None
    if not isinstance(name, str):
        raise bad_request(f"tool_choice: {given!r} names no function.", param="tool_choice")
    return name


def _offered(tools: Tools | None) -> Tools:
    if not tools:
        raise bad_request("tool_choice forces a call, but no tools are offered.", param="tools")
    return tools


def _named(names: Sequence[str], tools: Tools | None) -> Tools:
    by_name = {tool["function"]["name"]: tool for tool in _offered(tools)}
    for name in names:
        if name not in by_name:
            why = f"tool_choice: there is no tool {name!r}, there are {', '.join(by_name)}"
            raise bad_request(why, param="tool_choice")
    return [by_name[name] for name in dict.fromkeys(names)]
