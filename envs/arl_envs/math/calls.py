"""Answering tool calls, however malformed: one tool message each, never an exception."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentgym_rl.env import Message

from .calculator import Calculator
from .evaluator import EvaluationError

BAD_CALL = "error: bad call"


def answer_calls(calls: Any, calculator: Calculator) -> tuple[list[Message], list[str]]:
    """A tool message per call, in order, and what was wrong with the calls that failed.

    A failed call is answered with a text that starts "error:", so the model can try again.
    """
    messages: list[Message] = []
    errors: list[str] = []
    for call in calls if isinstance(calls, list) else [calls]:
        call = call if isinstance(call, Mapping) else {}
        try:
            content = calculator.run(_expression(call))
        except EvaluationError as error:
            content = f"error: {error}"
            errors.append(content)
        except _BadCall as error:
            content = BAD_CALL
            errors.append(f"{BAD_CALL}: {error}")
        call_id = call.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    return messages, errors


class _BadCall(ValueError):
    """The call is not one of the calculator with one string argument."""


def _expression(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise _BadCall("no function")
    if function.get("name") != "calculator":
        raise _BadCall("the only tool is calculator")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise _BadCall("arguments are no JSON") from error
    if not isinstance(arguments, Mapping) or arguments.keys() != {"expression"}:
        raise _BadCall("expected one argument, expression")
    if not isinstance(arguments["expression"], str):
        raise _BadCall("expression is no string")
    return arguments["expression"]
