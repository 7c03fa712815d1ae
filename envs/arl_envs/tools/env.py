"""The tools environment: a request, a shop's tools, and a checked end state."""

from __future__ import annotations

from typing import Any

from agentgym_rl.env import Message, Step
from agentgym_rl.errors import EnvError
from agentgym_rl.task import Split, Task
from agentgym_rl.tool_env import ToolEnv

from .answers import Verdict, judge
from .levels import level_of
from .oracle import solve
from .problem import Problem, problem_of
from .shop import Database, Desk
from .source import ToolsTasks


class ToolsEnv(Desk, ToolEnv):
    """Make a request; tool calls are carried out, a message without any is the final answer.

    The reward is 1 if all tables are as they should be, nothing was tried that nobody asked for,
    and the answer says the facts (`answers.py`); it comes with the last step only.

    Raises:
        ConfigError: no such level.
    """

    def __init__(self, *, level: int = 1) -> None:
        self._level = level_of(level)
        self.max_turns = self._level.max_turns
        self.use_tools(self._level.tools)
        self._problem: Problem | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, level: int = 1) -> ToolsTasks:
        """Endless tasks of `split`; no request is in both splits."""
        return ToolsTasks(split, seed=seed, level=level_of(level))

    def task_options(self) -> dict[str, Any]:
        return {"level": self._level.number}

    def begin(self, task: Task) -> list[Message]:
        """The request.

        Raises:
            EnvError: the task is none of this environment's.
        """
        level = task.data.get("level")
        if level != self._level.number:
            raise EnvError(f"task {task.id} is of level {level!r}, not {self._level.number}")
        problem = problem_of(self._level, task.seed)
        if task.data.get("request") != problem.request:
            raise EnvError(f"task {task.id} was not generated: its seed makes another request")
        self._forget()
        Desk.__init__(self, Database(problem.image), problem.salt)
        self._problem = problem
        return [
            {"role": "system", "content": self._level.prompt},
            {"role": "user", "content": problem.request},
        ]

    def finish(self, text: str) -> Step:
        """Judge the end."""
        assert self._problem is not None
        verdict = judge(text, self._problem.facts)
        parts = {
            "answer": float(verdict is Verdict.OK),
            "state": float(self.database.state() == self._problem.end),
            "asked_for": float(self.refused <= self._problem.refused),
        }
        reward = float(all(parts.values()))
        if verdict is Verdict.OK and not reward:
            verdict = Verdict.WRONG
        info = {"verifier": verdict.value, "reward_components": parts}
        return Step([], reward, True, False, info)

    def solve(self) -> list[Message] | None:
        return None if self._problem is None else solve(self._problem)

    async def close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._problem is not None:
            self.database.close()
            self._problem = None
