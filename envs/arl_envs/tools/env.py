"""The tools environment: a request, a shop's tools, and a checked end state."""

from __future__ import annotations

import re
from typing import Any

from agentgym_rl import EnvError, Message, Step, Task, ToolEnv
from agentgym_rl.core import Split

from .answers import ToolsVerdict, is_question, judge
from .goals import Ask
from .levels import level_of
from .problem import Problem, ToolsTasks, problem_of, solve
from .shop import Database, Desk

MAX_QUESTIONS = 3
"""The number of questions that get a reply; the next one counts as the final message."""
NEEDLESS = "Ask me only what is open."
_NUMBER = re.compile(r"\d+")


class ToolsEnv(Desk, ToolEnv):
    """An environment of user requests: it executes tool calls; other messages go to the user.

    The user replies to a question: a message that ends with "?". Any other message is the final
    answer. The reward is 1 if all tables are in the required state, no refusal and no change of a
    row happened beyond the request, the agent asked exactly about the open part of the request,
    and the answer gives the facts (`answers.py`); it comes with the last step only.

    The user names the customer or order that is open, but only after the tools have shown all
    candidates. Any other question is needless and fails the task.

    `level`: 1 to 5. From level 2 on, its knobs can be set: `num_calls` of a perfect agent (1-6),
    `num_tables` (5-7), `distractors` (0-5), and the shares of requests with `ambiguity` and of
    `impossible` ones (0-1).

    Raises:
        ConfigError: there is no such level or knob.
    """

    def __init__(
        self,
        *,
        level: int = 1,
        num_calls: int | None = None,
        num_tables: int | None = None,
        distractors: int | None = None,
        ambiguity: float | None = None,
        impossible: float | None = None,
    ) -> None:
        self._options = {
            "level": level,
            "num_calls": num_calls,
            "num_tables": num_tables,
            "distractors": distractors,
            "ambiguity": ambiguity,
            "impossible": impossible,
        }
        self._level = level_of(level, **{k: v for k, v in self._options.items() if k != "level"})
        self.max_turns = self._level.max_turns
        self.use_tools(self._level.tools)
        self._problem: Problem | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, level: int = 1, **knobs: Any) -> ToolsTasks:
        """Return endless tasks of `split`; no request is in both splits."""
        return ToolsTasks(split, seed=seed, level=level_of(level, **knobs))

    def task_options(self) -> dict[str, Any]:
        return self._options

    def begin(self, task: Task) -> list[Message]:
        """Load the task's world and return the prompt and the request.

        Raises:
            EnvError: the task is not of this environment.
        """
        level, knobs = task.data.get("level"), task.data.get("knobs", {})
        if (level, knobs) != (self._level.number, dict(self._level.knobs)):
            raise EnvError(
                f"task {task.id} is of level {level!r} {knobs}, the environment of "
                f"{self._level.number} {dict(self._level.knobs)}"
            )
        problem = problem_of(self._level, task.seed)
        if task.data.get("request") != problem.request:
            raise EnvError(f"task {task.id} was not generated: its seed makes another request")
        self._forget()
        Desk.__init__(self, Database(problem.image), problem.salt)
        self._problem = problem
        self._asked, self._needless = False, 0
        self._shown: set[str] = set()
        return [
            {"role": "system", "content": self._level.prompt},
            {"role": "user", "content": problem.request},
        ]

    async def step(self, action: Message) -> Step:
        step = await super().step(action)
        for message in step.observation:
            text = message["content"]
            if message["role"] == "tool" and not text.startswith("error:"):
                self._shown.update(_NUMBER.findall(text))
        return step

    def finish(self, text: str) -> Step:
        """Reply to a question, or judge the final message."""
        assert self._problem is not None
        if is_question(text) and self._asked + self._needless < MAX_QUESTIONS:
            reply: Message = {"role": "user", "content": self._reply(self._problem.ask)}
            return Step([reply], 0.0, False, False, self._counted())
        verdict = judge(text, self._problem.facts)
        parts = {
            "answer": float(verdict is ToolsVerdict.OK),
            "state": float(self.database.state() == self._problem.end),
            "asked_for": float(
                self.refused <= self._problem.refused
                and self.database.changed <= self._problem.changed
            ),
            "questions": float(
                self._needless == 0 and self._asked == (self._problem.ask is not None)
            ),
        }
        reward = float(all(parts.values()))
        if verdict is ToolsVerdict.OK and not reward:
            verdict = ToolsVerdict.WRONG
        judged = {"verifier": verdict.value, "reward_components": parts}
        return Step([], reward, True, False, self._counted() | judged)

    def _reply(self, ask: Ask | None) -> str:
        """Return the reply that resolves the ambiguity once, if the tools have shown it."""
        if ask is not None and not self._asked and ask.among <= self._shown:
            self._asked = True
            return ask.reply
        self._needless += 1
        return NEEDLESS

    def solve(self) -> list[Message] | None:
        return None if self._problem is None else solve(self._problem)

    async def close(self) -> None:
        await super().close()
        self._forget()

    def _counted(self) -> dict[str, Any]:
        return {"metrics": {"questions": self._asked + self._needless}}

    def _forget(self) -> None:
        if self._problem is not None:
            self.database.close()
            self._problem = None
