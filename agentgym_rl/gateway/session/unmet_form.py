"""The check of a reply against the form that its request demanded: JSON of a schema, or calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from agentgym_rl.gateway.messages import parsed_arguments
from agentgym_rl.gateway.request.reply_form import ReplyForm


def _nothing_wrong(*_: Any) -> tuple[()]:
    return ()


_Validator: Any = extend(
    # A regular expression may take forever. A value that is not checked counts as valid.
    Draft202012Validator,
    {"pattern": _nothing_wrong, "patternProperties": _nothing_wrong},
)
_UNCHECKED = (SchemaError, Unresolvable, RecursionError, TypeError)
"""The errors of a schema that cannot be applied: it has external references, or is not a schema."""


def unmet(form: ReplyForm, reply: Mapping[str, Any]) -> str:
    """Return how a message, as sent to the client, violates the form; "" if it does not."""
    calls = reply.get("tool_calls") or ()
    if not calls or not form.tools:
        if form.schema is None:
            return "made no call"
        return _unfit(reply.get("content") or "", form.schema, "was no JSON of the schema")
    functions = {tool["function"]["name"]: tool["function"] for tool in form.tools}
    for function in (call["function"] for call in calls):
        if (name := function["name"]) not in functions:
            return f"called {name!r:.80}, which was not asked for"
        schema = functions[name].get("parameters") or {}
        if why := _unfit(function["arguments"], schema, f"called {name!r} with other arguments"):
            return why
    return ""


def _unfit(text: str, schema: Mapping[str, Any], what: str) -> str:
    try:
        value = parsed_arguments(text)
    except ValueError as error:
        return f"{what}: {error}"
    try:
        error = next(_Validator(schema, registry=Registry()).iter_errors(value), None)
    except _UNCHECKED:
        return ""
    return f"{what}: {error.message:.200}" if error else ""
