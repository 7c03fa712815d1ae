"""The math environment: a question, an optional calculator, and a checked final answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from agentgym_rl import Env, EnvError, Message, Step, Task, TaskSource, Verifier
from agentgym_rl.core import Split, first_task
from agentgym_rl.gym import VerifierPool
from agentgym_rl.gym.tool_env import text_of

from .answers import MathVerdict
from .calculator import answer_calls
from .judge import Judgement, Quiz, judge, judge_number
from .options import SYSTEM_PROMPT, Options, check_task
from .oracle import answer_message, solve
from .rows import row_tasks
from .source import MathTasks

__all__ = ["SYSTEM_PROMPT", "MathEnv"]


class MathEnv(Env):
    r"""An environment of one problem; a message without tool calls is the final answer.

    The reward is 1 if the final answer is right, else 0, and comes with the last step only. For
    generated problems, the last `\boxed{}` must hold exactly the right number (`answers.py`); for
    `rows`, the right answer in the same form (`symbolic/`). `options` are the fields of
    `Options`.

    Raises:
        ConfigError: an option out of range.
    """

    step_timeout_s = 60.0  # a wait for the verifier, then two attempts in it

    def __init__(self, **options: Any) -> None:
        self._options = Options(**options)
        self.max_turns = self._options.max_turns
        self.tools = self._options.tools
        self.uses_verifier = self._options.has_rows
        self._verifier = Verifier(None)
        self._random = random.Random()
        self._task: Task | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """Return endless generated tasks of `split`, or the rows of a file or data set. No question
        is in both splits."""
        chosen = Options(**options)
        if chosen.has_rows:
            rows = {"data": chosen.data, "eval_data": chosen.eval_data, **chosen.rows}
            return row_tasks(split, seed=seed, **rows)
        return MathTasks(split, seed=seed, level=chosen.level)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start `options["task"]`, or else the first training problem of `seed`. Answers that need
        algebra are judged in `options["verifier"]`, a started `VerifierPool`, or else in a pool of
        the environment's own, which `close` ends.

        Raises:
            EnvError: unknown options, or a task this environment cannot play.
        """
        options = dict(options or {})
        task, pool = options.pop("task", None), options.pop("verifier", None)
        if options:
            raise EnvError(f"unknown reset options {sorted(options)}; allowed: task, verifier")
        if task is None:
            seed = self._random.getrandbits(53) if seed is None else seed
            read = partial(self.task_source, "train", seed=seed, **self._options.given())
            task = first_task(await asyncio.to_thread(read))
        check_task(task, self._options)
        await self._verify_in(pool)
        self._task = task
        self._tool_calls = self._tool_errors = 0
        question: Message = {"role": "user", "content": task.data["question"]}
        prompt = self._options.system_prompt
        first: list[Message] = [{"role": "system", "content": prompt}] if prompt else []
        return [*first, question], {"task_id": task.id}

    async def step(self, action: Message) -> Step:
        """Work out the tool calls of `action`, or judge it as the final answer.

        Raises:
            EnvError: there is no episode: before `reset`, or after its end.
            InfraError: the verifier failed, so no reward is known.
        """
        if self._task is None:
            raise EnvError("step without an episode: call reset first")
        calls = action.get("tool_calls")
        return self._calculate(calls) if calls else await self._finish(self._task, text_of(action))

    async def close(self) -> None:
        await self._verifier.close()

    def solve(self) -> list[Message] | None:
        if self._task is None:
            return None
        if self._task.data["kind"] == "symbolic":
            return [answer_message(self._task.data["answer"])]
        return [*solve(self._task)]

    async def _verify_in(self, pool: object) -> None:
        if pool is None:
            return
        if not isinstance(pool, VerifierPool):
            raise EnvError(
                f"options['verifier']: got {type(pool).__name__}, expected a started VerifierPool"
            )
        await self._verifier.close()
        self._verifier = Verifier(pool)

    def _calculate(self, calls: Any) -> Step:
        messages, errors = answer_calls(calls, self._options.calculator)
        self._tool_calls += len(messages)
        self._tool_errors += len(errors)
        info = self._info()
        if errors:
            info["tool_errors"] = errors
        return Step(messages, 0.0, False, False, info)

    async def _finish(self, task: Task, text: str) -> Step:
        judgement = await self._judge(task.data, text)
        reward = float(judgement.verdict is MathVerdict.OK)
        info = self._info() | {
            "verifier": judgement.verdict.value,
            "reward_components": {"correct": reward},
            "stop_reason": "answer",
        }
        if task.data["kind"] == "symbolic":
            info |= {"verifier_detail": judgement.detail, "verifier_ms": judgement.ms}
            timeouts = float(judgement.verdict is MathVerdict.TIMEOUT)
            info["metrics"] = info["metrics"] | {"verifier_timeouts": timeouts}
        self._task = None
        return Step([], reward, True, False, info)

    async def _judge(self, data: Mapping[str, Any], text: str) -> Judgement:
        if data["kind"] != "symbolic":
            return Judgement(judge_number(text, answer=data["answer"], kind=data["kind"]))
        quiz = Quiz(data["answer"], data["question"], self._options.mark)
        return await judge(text, quiz, self._verifier, timeout_s=self._options.verify_timeout_s)

    def _info(self) -> dict[str, Any]:
        assert self._task is not None
        metrics = {
            "tool_calls": self._tool_calls,
            "tool_errors": self._tool_errors,
        }
        return {"task_id": self._task.id, "metrics": metrics}
