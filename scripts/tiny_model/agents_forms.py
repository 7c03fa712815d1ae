"""The message formats of agent frameworks: their first prompts, their calls, their answers.

The prompts are those that arrive at the gateway from the agents of examples/, which
tests/agents/test_frameworks.py verifies (`agents_prompts.json`). Parts that never change in a long
one are tokens of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arl_envs.math.oracle import answer_message, call_message

from agentgym_rl.core import Message, ToolSpec

_PROMPTS: dict[str, Any] = json.loads(Path(__file__).with_name("agents_prompts.json").read_text())
_LONG = 60
"""The characters from which a part of a system prompt is a token of its own."""
_LONGEST = 200
"""The longest such token, in characters; llguidance refuses tokens above 1,024 bytes."""


@dataclass(frozen=True, slots=True)
class Form:
    """The message format of a framework: its first prompt, its call of the calculator, and its
    answer."""

    name: str

    @property
    def system(self) -> str:
        return "\n".join(_PROMPTS[self.name]["system"])

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return _PROMPTS[self.name]["tools"]

    def begin(self, question: str) -> list[Message]:
        """Return the first messages of an episode."""
        asked = f"New task:\n{question}" if self.name == "smolagents" else question
        return [{"role": "system", "content": self.system}, {"role": "user", "content": asked}]

    def work(self, expression: str, *, number: int) -> dict[str, Any]:
        """Return the call that computes an expression, in turn `number`."""
        call_id = f"call_{number}_0"
        if self.name == "shell":
            return _call("bash", {"command": f"echo $(({expression}))"}, call_id)
        return call_message(expression, call_id=call_id)

    def answer(self, number: str, *, turn: int) -> dict[str, Any]:
        """Return the last message."""
        match self.name:
            case "pydantic_ai":
                return _call("final_result", {"answer": int(number)}, f"call_{turn}_0")
            case "smolagents":
                return _call("final_answer", {"answer": number}, f"call_{turn}_0")
            case "response_format":
                return {"role": "assistant", "content": json.dumps({"answer": int(number)})}
        return answer_message(number)

    def in_history(self, call: dict[str, Any], result: str) -> list[Message]:
        """Return a call and its result in the prompt of the next turn."""
        (made,) = call["tool_calls"]
        if not self.rewrites:
            return [call, {"role": "tool", "tool_call_id": made["id"], "content": result}]
        function = made["function"]
        function = {**function, "arguments": json.loads(function["arguments"])}
        calls = [{**made, "function": function}]
        return [
            {"role": "assistant", "content": f"Calling tools:\n{calls}"},
            {"role": "user", "content": f"Observation:\n{result}"},
        ]

    @property
    def rewrites(self) -> bool:
        """Return whether the history that it sends is text of its own, not what was sampled."""
        return self.name == "smolagents"


def _call(name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


FORMS = tuple(Form(name) for name in ("pydantic_ai", "smolagents", "response_format", "shell"))
RETRY = (
    "Now let's retry: take care not to repeat previous errors! If you have retried several times, "
    "try a completely different approach."
)
"""The end of smolagents' message after an error."""


def phrases() -> tuple[str, ...]:
    """Return the texts that are tokens of their own: of tools, and of system prompts the parts that
    never change."""
    found: dict[str, None] = {}
    for form in FORMS:
        found |= dict.fromkeys(part for tool in form.tools for part in _cut(json.dumps(tool)))
        # The list of tools is the user's; the text before and after it is the framework's.
        for part in re.split(r"(?m)^(?=- )|(?<=any)\n\n", form.system):
            if len(part) >= _LONG:
                found |= dict.fromkeys(_cut(part.strip("\n")))
    return (*found, RETRY)


def _cut(text: str) -> list[str]:
    """Return `text` in pieces, which end with lines or sentences, of at most `_LONGEST`."""
    pieces = [""]
    for part in re.findall(r".*?(?:\n+|[.,:] |$)", text):
        if len(pieces[-1]) + len(part) > _LONGEST:
            pieces.append("")
        pieces[-1] += part
    return pieces
