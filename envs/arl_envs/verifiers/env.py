"""A single-turn taskset of verifiers as an environment: a prompt, one reply, a reward."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.env import Env, Message, Step
from agentgym_rl.errors import ConfigError, EnvError
from agentgym_rl.task import Split, Task
from agentgym_rl.tool_env import listed, reply_to, text_of

from .bridge import bridge_to, interpreter, longest_call_s
from .tasks import LIST_TIMEOUT_S, Source, TasksetTasks


class VerifiersEnv(Env):
    """Asks the tasks of `taskset`: an installed package, or a file ending in .py.

    `python` is the interpreter that has verifiers and the taskset (default: what
    ARL_VERIFIERS_PYTHON names). `config` is the taskset's own; `eval_config`, on top of it, gives
    the held-out tasks, which are never trained on. Without it the hash of a prompt says which
    tasks are held out. Of an endless taskset, the first `num_tasks` are played.

    The reward is the taskset's sum of weighted rewards; `reward_range` is what `arl check` holds
    it against. A reply may be scored for `timeout_s`, which does not count the wait for others:
    `scored_at_once` replies are scored together. More than one is right where the scorer waits, as
    for a judge, and not where it works, as each would wait for the work of the others. Tasksets
    that need tools, a user, a container or a runtime are refused.

    Raises:
        ConfigError: there is no Python with verifiers, or `scored_at_once` is below 1; from
            `reset` and `task_source`: the taskset is not there, does not take the config, or
            cannot be played.
    """

    max_turns = 1

    def __init__(
        self,
        *,
        taskset: str = "",
        python: str = "",
        config: Mapping[str, Any] | None = None,
        eval_config: Mapping[str, Any] | None = None,
        num_tasks: int | None = None,
        timeout_s: float = 60.0,
        scored_at_once: int = 1,
        reward_range: Sequence[float] | None = (0.0, 1.0),
    ) -> None:
        if scored_at_once < 1:
            raise ConfigError(f"scored_at_once: got {scored_at_once}, expected 1 or more")
        self._train, self._held_out = _sources(taskset, python, config, eval_config, num_tasks)
        self._bridge = bridge_to(taskset, self._train.python)
        self._timeout_s, self._at_once = timeout_s, scored_at_once
        self.step_timeout_s = longest_call_s(max(timeout_s, LIST_TIMEOUT_S))
        self.reward_range = None if reward_range is None else (reward_range[0], reward_range[1])
        self._random = random.Random()
        self._task: Task | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TasksetTasks:
        """The tasks of `split`; the first call of a process blocks until the taskset is read."""
        env = cls(**options)
        return TasksetTasks(env._train, env._held_out, split, seed=seed)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Ask `options["task"]`, or a training task of `seed`.

        Raises:
            ConfigError: see the class.
            EnvError: unknown options, a task of another taskset, or its code raised.
            InfraError: the process that has the taskset failed.
        """
        options = dict(options or {})
        task = options.pop("task", None)
        if options or not isinstance(task, Task | None):
            raise EnvError(f"reset options: got {sorted(options)}, task {task!r}; allowed: a task")
        self._task = None
        task = task or await self._task_of(self._random.getrandbits(53) if seed is None else seed)
        if not isinstance(task.data.get("number"), int):
            raise EnvError(f"task {task.id} is none of a taskset: it has no number")
        found = await self._bridge.call("ask", timeout_s=LIST_TIMEOUT_S, **self._where(task))
        if found["digest"] != task.data["digest"]:
            raise EnvError(
                f"task {task.id} of {self._train.taskset} asks something else than when it was "
                "listed: does its load() give the same tasks each time?"
            )
        self._task = task
        return found["messages"], {"task_id": task.id}

    async def step(self, action: Message) -> Step:
        """Have the reply scored; the episode is over.

        Raises:
            EnvError: there is no episode, or the taskset's code raised.
            InfraError: scoring took too long, had no turn in time, or its process died: nothing is
                known of the reply.
        """
        task, self._task = self._task, None
        if task is None:
            raise EnvError("step without an episode: call reset first")
        reply = text_of(action).encode("utf-8", "replace").decode()  # no lone surrogates over there
        found = await self._bridge.call(
            "score",
            timeout_s=self._timeout_s,
            at_once=self._at_once,
            reply=reply,
            **self._where(task),
        )
        missing = [name for name, value in found["rewards"].items() if value is None]
        if missing or not math.isfinite(found["reward"]):
            raise EnvError(f"{self._train.taskset} rewards {found['rewards']}: not finite numbers")
        info: dict[str, Any] = {
            "task_id": task.id,
            "reward_components": found["rewards"],
            "metrics": found["metrics"],
            "stop_reason": "answer",
        }
        calls = listed(action.get("tool_calls") or [])
        replies = [reply_to(call, "error: there are no tools") for call in calls]
        if replies:
            info["tool_errors"] = [message["content"] for message in replies]
        return Step(replies, found["reward"], True, False, info)

    async def _task_of(self, seed: int) -> Task:
        found = await asyncio.to_thread(
            TasksetTasks, self._train, self._held_out, "train", seed=seed
        )
        return found[0]

    def _where(self, task: Task) -> dict[str, Any]:
        source = self._held_out if task.data.get("held_out") else self._train
        if source is None:
            raise EnvError(f"task {task.id} is held out by an eval_config that is not given here")
        return {"source": source.to_json(), "index": task.data["number"]}


def _sources(
    taskset: str,
    python: str,
    config: Mapping[str, Any] | None,
    eval_config: Mapping[str, Any] | None,
    num_tasks: int | None,
) -> tuple[Source, Source | None]:
    if not taskset:
        raise ConfigError("taskset: got none, expected a name, as in --env verifiers:my-taskset")
    found = interpreter(python)
    train = Source(found, taskset, config or {}, num_tasks)
    if eval_config is None:
        return train, None
    return train, Source(found, taskset, {**train.config, **eval_config}, num_tasks)
