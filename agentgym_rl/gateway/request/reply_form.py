"""The form that a request demands of its reply: a schema, or a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_rl.gateway.errors import bad_request, unsupported

from .offered_tools import ToolChoice, Tools

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


def read_format(given: Any, param: str, *, nested: bool) -> Mapping[str, Any] | None:
    """Return the schema in OpenAI's `response_format` or `text.format`; None: any text.

    `nested`: the schema stands in a `json_schema` object, as in chat completions.
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
    if schema is None:
        return ANY_OBJECT
    if not isinstance(schema, dict):
        where = f"{where}.schema"
        raise bad_request(f"{where} must be a JSON schema, an object.", param=where)
    return schema  # the engine reports whether it can enforce it
