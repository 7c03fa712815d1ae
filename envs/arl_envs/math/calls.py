"""The answers to tool calls, however malformed: one tool message each, never an exception."""

from __future__ import annotations

from typing import Any

from agentgym_rl.core.chat import Message
from agentgym_rl.gym.tool_env import BadCall, listed, reply_to
from arl_envs.tool_calls import argument_of

from .calculator import Calculator
from .evaluator import EvaluationError

BAD_CALL = "error: bad call"


def answer_calls(calls: Any, calculator: Calculator | None) -> tuple[list[Message], list[str]]:
    """Return a tool message for each call, in order, and the errors of the calls that failed.

    A failed call is answered with a text that starts with "error:", so the model can try again.
    """
    messages: list[Message] = []
    errors: list[str] = []
    for call in listed(calls):
        try:
            if calculator is None:
                raise BadCall("there are no tools")
            content = calculator.run(argument_of(call, tool="calculator", argument="expression"))
        except EvaluationError as error:
            content = f"error: {error}"
            errors.append(content)
        except BadCall as error:
            content = BAD_CALL
            errors.append(f"{BAD_CALL}: {error}")
        messages.append(reply_to(call, content))
    return messages, errors
