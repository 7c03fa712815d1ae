"""The code environment: the agent writes a program, may try it, and hidden tests grade it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from agentgym_rl import Env, EnvError, Message, SandboxError, Step, Task, TaskSource
from agentgym_rl.core import Split, checked_task, first_task
from agentgym_rl.gym import SandboxBackend
from agentgym_rl.gym.tool_env import text_of

from .extract import MAX_PROGRAM_CHARS, last_program
from .generated import GeneratedTasks, Recipe, solve
from .grader import Grade, Grader
from .options import Options
from .problem import Problem
from .python_tool import TOOL, PythonTool
from .rows import row_tasks
from .verdict import Verdict

NO_CODE = f"no ```python block of at most {MAX_PROGRAM_CHARS} characters"
SYSTEM_PROMPT = "Solve the task in Python. Answer with one ```python block."


class CodeEnv(Env):
    """An environment whose tasks require a program; a message without tool calls is the submission.

    The submission is a fenced block of the message (`extract.py`), which runs in a sandbox once per
    hidden test. The reward comes with the last step only. `options` are the fields of `Options`.

    Raises:
        TypeError: an option is unknown or out of range.
    """

    needs_sandboxes = True
    max_turns = 6
    step_timeout_s = 300.0  # four programs, or a submission, and the wait for sandboxes

    def __init__(self, **options: Any) -> None:
        self._options = Options(**options)
        self.tools = (TOOL,) if self._options.tool else ()
        self._random = random.Random()
        self._task: Task | None = None
        self._problem: Problem
        self._grader: Grader
        self._tool: PythonTool

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """Return endless generated tasks of `split`, or the rows of a file or data set."""
        chosen = Options(**options)
        if chosen.rows:
            return row_tasks(split, seed=seed, **chosen.rows)
        forms = ("call", "text") if chosen.form == "any" else (chosen.form,)
        return GeneratedTasks(split, families=chosen.chosen_families(), forms=forms, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start `options["task"]`, or else the first training task of `seed`. Its programs run in
        `options["sandboxes"]`, a started `SandboxBackend`.

        Raises:
            EnvError: no sandboxes, unknown options, or a task this environment cannot play.
        """
        options = dict(options or {})
        task, sandboxes = options.pop("task", None), options.pop("sandboxes", None)
        if options:
            raise EnvError(f"unknown reset options {sorted(options)}; allowed: task, sandboxes")
        if not isinstance(sandboxes, SandboxBackend):
            raise EnvError(
                f"options['sandboxes']: got {type(sandboxes).__name__}, expected a started "
                "SandboxBackend: async with agentgym_rl.make_sandbox('local') as sandboxes"
            )
        if task is None:
            seed = self._random.getrandbits(53) if seed is None else seed
            read = partial(self.task_source, "train", seed=seed, **asdict(self._options))
            task = first_task(await asyncio.to_thread(read))
        self._problem = self._problem_of(task)
        self._task, self._grader = task, Grader(sandboxes)
        self._tool = PythonTool(
            sandboxes, output_chars=self._options.tool_output_chars, enabled=self._options.tool
        )
        self._tool_calls = self._tool_errors = 0
        messages: list[Message] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": self._problem.statement},
        ]
        return messages, {"task_id": task.id}

    async def step(self, action: Message) -> Step:
        """Run the programs of tool calls, or grade the submission.

        Raises:
            EnvError: there is no episode: before `reset`, or after its end.
            SandboxError: nothing could be run, so no reward is known.
        """
        if self._task is None:
            raise EnvError("step without an episode: call reset first")
        calls = action.get("tool_calls")
        return await (self._try(calls) if calls else self._submit(text_of(action)))

    def solve(self) -> list[Message] | None:
        if self._task is None or self._task.data.get("kind") != "generated":
            return None
        return [*solve(self._task)]

    async def _try(self, calls: Any) -> Step:
        messages, errors = await self._tool.answer(calls)
        self._tool_calls += len(messages)
        self._tool_errors += len(errors)
        info = self._info()
        if errors:
            info["tool_errors"] = errors
        return Step(messages, 0.0, False, False, info)

    async def _submit(self, text: str) -> Step:
        source = last_program(text, self._problem.entry)
        whole = self._options.reward == "fraction"
        grade = Grade(Verdict.NO_CODE, total=len(self._problem.hidden), detail=NO_CODE)
        if source is not None:
            grade = await self._grader.grade(self._problem, source, whole=whole)
        if grade.verdict is Verdict.INFRA_ERROR:
            raise SandboxError(grade.detail)
        reward = grade.fraction if whole else float(grade.verdict is Verdict.ACCEPTED)
        info = self._info(grade) | {
            "verifier": grade.verdict.value,
            "verifier_detail": grade.detail,
            "reward_components": {"tests": reward},
            "stop_reason": "answer",
        }
        self._task = None
        return Step([], reward, True, False, info)

    def _info(self, grade: Grade | None = None) -> dict[str, Any]:
        assert self._task is not None
        metrics: dict[str, float] = {
            "tool_calls": self._tool_calls,
            "tool_errors": self._tool_errors,
        }
        if grade is not None:
            metrics |= {"tests_run": grade.tests_run, "tests_passed": grade.passed}
            metrics |= {f"verdict_{v.value}": float(v is grade.verdict) for v in Verdict}
        return {"task_id": self._task.id, "metrics": metrics}

    def _problem_of(self, task: object) -> Problem:
        task = checked_task(task)
        try:
            if task.data.get("kind") == "row":
                return Problem.from_json(task.data["problem"])
            recipe = Recipe.from_json(task.data, seed=task.seed)
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(
                f"task {task.id} is not a task of the code environment: {error!r}"
            ) from error
        return recipe.problem(num_hidden=self._options.num_hidden)
