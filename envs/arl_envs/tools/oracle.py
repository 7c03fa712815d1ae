"""The gold player: the messages of a perfect agent."""

from __future__ import annotations

import json
from typing import Any

from agentgym_rl.core.chat import Message

from .answers import answer
from .goals import GoldCall
from .problem import Problem


def solve(problem: Problem) -> list[Message]:
    """Return the assistant messages of a perfect episode: one call per message, a question
    if one is needed, then the answer."""
    said = [call_message(call, call_id=f"call_{i}") for i, call in enumerate(problem.calls)]
    if problem.ask is not None:
        said.insert(problem.ask.after, text_message(problem.ask.question))
    return [*said, text_message(answer(problem.facts))]


def call_message(call: GoldCall, *, call_id: str) -> dict[str, Any]:
    """Return an assistant message that makes one call."""
    function = {"name": call.tool, "arguments": json.dumps(dict(call.arguments))}
    made = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def text_message(text: str) -> dict[str, Any]:
    """Return an assistant message without a call."""
    return {"role": "assistant", "content": text}
