"""Level 1 of the math environment as a framework shows it, to measure a model without frameworks.

The form changes from task to task, unless one is chosen: this trains with a shell tool.

    PYTHONPATH=scripts/tiny_model arl train --env agents_env:Framed --env.options.form=shell \\
        --agent react --model bundled/agents

The form of smolagents is missing: an environment cannot rewrite the history, as
examples/smolagents_agent.py does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agents_forms import FORMS
from arl_envs.math.env import MathEnv

from agentgym_rl import ConfigError, Env, Message, Step, Task, TaskSource
from agentgym_rl.core import Split

_PLAYED = [form for form in FORMS if not form.rewrites]


class Framed(Env):
    """The problems in each form; its shell knows no command but the demonstrated one."""

    def __init__(self, *, form: str = "") -> None:
        self._forms = [each for each in _PLAYED if form in ("", each.name)]
        if not self._forms:
            raise ConfigError(f"form: got {form!r}, allowed: {[each.name for each in _PLAYED]}")
        self._math = MathEnv()
        self.max_turns = self._math.max_turns

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """Return the tasks of the math environment."""
        return MathEnv.task_source(split, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Begin a problem of the math environment."""
        task: Task = (options or {})["task"]
        form = self._forms[task.seed % len(self._forms)]
        self.tools = form.tools
        (*_, question), info = await self._math.reset(seed=seed, options=options)
        return form.begin(question["content"]), info

    async def step(self, action: Message) -> Step:
        """Step the math environment."""
        return await self._math.step(_understood(action))


def _understood(action: Message) -> Message:
    """Return the message in the form of the math environment."""
    try:
        for call in action.get("tool_calls") or ():
            function = call["function"]
            arguments = json.loads(function["arguments"])
            if function["name"] == "final_result":
                return _boxed(arguments["answer"])
            if function["name"] == "bash":
                expression = arguments["command"].removeprefix("echo $((").removesuffix("))")
                function |= {"name": "calculator"}
                function |= {"arguments": json.dumps({"expression": expression})}
        if not action.get("tool_calls") and action["content"].startswith("{"):
            return _boxed(json.loads(action["content"])["answer"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return _boxed("")
    return action


def _boxed(answer: object) -> Message:
    return {"role": "assistant", "content": rf"\boxed{{{answer}}}"}
