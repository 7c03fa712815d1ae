"""The reward environment: it sends a prompt, and a function or a judge scores the one reply."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from agentgym_rl import Env, EnvError, Message, Step, Task, TaskSource
from agentgym_rl.core import Split, checked_task, first_task
from agentgym_rl.gym.tool_env import text_of

from .options import Options
from .scoring import Scorer
from .tasks import prompt_tasks, task_parts

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""The fields of a message with the thoughts, in the APIs of engines."""
_QUEUE_S = 60.0
"""The longest wait for a worker of the pool, on top of the call itself, which is tried twice."""


class RewardEnv(Env):
    """The prompts of a file, one reply each, scored by a function or a judge; see `Options`.

    Raises:
        ConfigError: an option that cannot work, or a function that cannot be called.
    """

    max_turns = 1
    reward_range = None
    """An open range: rewards may be of any size."""
    way_out = (
        "--env.options.executor=thread runs the function in a thread, and `pool` in a process that "
        "is killed; --env.options.timeout_s=N gives it longer"
    )

    def __init__(self, function: str = "", **options: Any) -> None:
        self._options = Options(function, **options)
        self._scorer = Scorer(self._options)
        self.uses_verifier = self._options.executor == "pool"
        limit_s = self._options.limit_s()
        self.step_timeout_s = 2 * limit_s + _QUEUE_S if self.uses_verifier else limit_s
        self._random = random.Random()
        self._task: Task | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """Return a task for each row (or several, or none: see `Options.processor`)."""
        return prompt_tasks(split, Options(**options), seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start `options["task"]`, or else the first training task of `seed`. With executor "pool",
        `options["verifier"]` is a started `VerifierPool`; without it, the environment has its own.

        Raises:
            EnvError: unknown options, a task this environment cannot play, or no training task.
        """
        options = dict(options or {})
        task, pool = options.pop("task", None), options.pop("verifier", None)
        if options:
            raise EnvError(f"unknown reset options {sorted(options)}; allowed: task, verifier")
        self._scorer.use_pool(pool)
        if task is None:
            seed = self._random.getrandbits(53) if seed is None else seed
            read = partial(prompt_tasks, "train", self._options, seed=seed)
            task = first_task(await asyncio.to_thread(read))
        task = checked_task(task)
        try:
            self._messages, self._row = task_parts(task.data)
        except ValueError as error:
            raise EnvError(
                f"task {task.id} is not a task of the reward environment: {error}"
            ) from error
        self._task = task
        return [dict(message) for message in self._messages], {"task_id": task.id}

    async def step(self, action: Message) -> Step:
        """Score the reply, and end the episode.

        Raises:
            EnvError: there is no episode, or the function failed, or the judge refuses: the reward
                is unknown.
            InfraError: the judge or the pool failed, or the function crashed in the pool.
        """
        if self._task is None:
            raise EnvError("step without an episode: call reset first")
        thoughts = _thoughts_of(action)
        score = await self._scorer.score(
            text_of(action), self._row, self._messages, thoughts=thoughts
        )
        info: dict[str, Any] = {"task_id": self._task.id, "stop_reason": "answer"}
        metrics = dict(score.components)
        if self.uses_verifier:
            metrics["verifier_timeouts"] = float(score.timed_out)
        if score.components:
            info["reward_components"] = score.components
        if metrics:
            info["metrics"] = metrics
        self._task = None
        return Step([], score.reward, True, False, info)

    async def close(self) -> None:
        await self._scorer.close()


def _thoughts_of(action: Message) -> str:
    found = (action.get(name) for name in _THOUGHTS)
    return next((text for text in found if isinstance(text, str) and text), "")
