"""The math environment: a question, a calculator, and a checked final answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, get_args

from agentgym_rl.env import Env, Message, Step
from agentgym_rl.errors import EnvError
from agentgym_rl.task import Split, Task
from arl_envs.messages import text_of

from .answers import Kind, Verdict, judge, read_number
from .calls import answer_calls
from .levels import level_of
from .oracle import solve
from .source import MathTasks

SYSTEM_PROMPT = "Solve the problem. Put the final answer in \\boxed{}."


class MathEnv(Env):
    r"""Ask one problem; tool calls are worked out, a message without any is the final answer.

    The reward is 1 if the last `\boxed{}` of the final answer holds exactly the right number,
    else 0; it comes with the last step only. `level`: 1 short word problems (the calculator
    does one operation a call), 2 arithmetic expressions, 3 long word problems, 4 fractions
    and decimals.

    Raises:
        ConfigError: no such level.
    """

    def __init__(self, *, level: int = 1) -> None:
        self._level = level_of(level)
        self.max_turns = self._level.max_turns
        self.tools = (self._level.calculator.tool,)
        self._random = random.Random()
        self._task: Task | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, level: int = 1) -> MathTasks:
        """Endless tasks of `split`; no question is in both splits."""
        return MathTasks(split, seed=seed, level=level)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Ask `options["task"]`, or else the first training problem of `seed`.

        Raises:
            EnvError: unknown options, or a task this environment cannot play.
        """
        options = dict(options or {})
        task = options.pop("task", None)
        if options:
            raise EnvError(f"unknown reset options {sorted(options)}; allowed: task")
        if task is None:
            seed = self._random.getrandbits(53) if seed is None else seed
            task = MathTasks("train", seed=seed, level=self._level.number)[0]
        self._check(task)
        self._task = task
        self._tool_calls = self._tool_errors = 0
        messages: list[Message] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": task.data["question"]},
        ]
        return messages, {"task_id": task.id}

    async def step(self, action: Message) -> Step:
        """Work out the tool calls of `action`, or judge it as the final answer.

        Raises:
            EnvError: there is no episode: before `reset`, or after its end.
        """
        if self._task is None:
            raise EnvError("step without an episode: call reset first")
        calls = action.get("tool_calls")
        return self._calculate(calls) if calls else self._finish(self._task, text_of(action))

    def solve(self) -> list[Message] | None:
        return None if self._task is None else [*solve(self._task)]

    def _calculate(self, calls: Any) -> Step:
        messages, errors = answer_calls(calls, self._level.calculator)
        self._tool_calls += len(messages)
        self._tool_errors += len(errors)
        info = self._info()
        if errors:
            info["tool_errors"] = errors
        return Step(messages, 0.0, False, False, info)

    def _finish(self, task: Task, text: str) -> Step:
        verdict = judge(text, answer=task.data["answer"], kind=task.data["kind"])
        reward = float(verdict is Verdict.OK)
        info = self._info() | {
            "verifier": verdict.value,
            "reward_components": {"correct": reward},
            "stop_reason": "answer",
        }
        self._task = None
        return Step([], reward, True, False, info)

    def _info(self) -> dict[str, Any]:
        assert self._task is not None
        metrics = {
            "tool_calls": self._tool_calls,
            "tool_errors": self._tool_errors,
        }
        return {"task_id": self._task.id, "metrics": metrics}

    def _check(self, task: object) -> None:
        if not isinstance(task, Task):
            raise EnvError(f"options['task']: got {type(task).__name__}, expected a Task")
        data = task.data
        level = data.get("level", self._level.number)
        if level != self._level.number:
            raise EnvError(f"task {task.id} is of level {level}, not {self._level.number}")
        if not isinstance(data.get("question"), str) or data.get("kind") not in get_args(Kind):
            raise EnvError(f"task {task.id}: expected question, answer and kind {get_args(Kind)}")
        answer = data.get("answer")
        if not isinstance(answer, str) or read_number(answer, data["kind"]) is None:
            raise EnvError(f"task {task.id}: {answer!r} is no {data['kind']}")
