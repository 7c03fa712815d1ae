"""A taskset of verifiers as an environment: its prompts, its tools, its user, its rewards."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgym_rl import ConfigError, Env, EnvError, Message, Step, Task
from agentgym_rl.core.task import Split
from agentgym_rl.gym.tool_env import listed, reply_to, text_of

from .bridge import bridge_to, interpreter, longest_call_s
from .tasks import LIST_TIMEOUT_S, Source, TasksetTasks


class VerifiersEnv(Env):
    """An environment with the tasks of `taskset`: an installed package, or a file ending in .py.

    `python` is the interpreter that has verifiers and the taskset (default: the value of
    ARL_VERIFIERS_PYTHON). `config` is the taskset's own; `eval_config`, on top of it, gives the
    held-out tasks, which are never trained on. Without it the hash of a prompt decides which tasks
    are held out. `num_tasks` limits a taskset, such as an endless one, to its first tasks.

    Tools of a taskset are called in its process. An environment that comes with it (or one that
    `env` names: `{"id": ..., "player": {"max_turns": 8}}`, the environment's own config) is the
    user, turn by turn. Such an environment has one agent, which is trained.

    The reward is the taskset's sum of weighted rewards; `arl check` tests it against
    `reward_range`. A reply may be processed for `timeout_s`, without the wait for others:
    `scored_at_once` replies are processed together. A value above 1 is right if the code waits, as
    for a judge, and wrong if it computes, as each reply would wait for the others. Tasksets with
    several agents, and those that need a container or a runtime, are refused.

    Raises:
        ConfigError: there is no Python with verifiers, or `scored_at_once` is below 1; from
            `reset` and `task_source`: the taskset is missing, does not take the config, or
            cannot be played.
    """

    max_turns = 50

    def __init__(
        self,
        *,
        taskset: str = "",
        python: str = "",
        config: Mapping[str, Any] | None = None,
        eval_config: Mapping[str, Any] | None = None,
        env: Mapping[str, Any] | None = None,
        num_tasks: int | None = None,
        timeout_s: float = 60.0,
        scored_at_once: int = 1,
        reward_range: Sequence[float] | None = (0.0, 1.0),
    ) -> None:
        if scored_at_once < 1:
            raise ConfigError(f"scored_at_once: got {scored_at_once}, expected 1 or more")
        if not taskset:
            raise ConfigError(
                "taskset: got none, expected a name, as in --env verifiers:my-taskset"
            )
        found = interpreter(python)
        self._train = Source(found, taskset, config or {}, num_tasks, env or {})
        self._held_out: Source | None = None
        if eval_config is not None:
            self._held_out = replace(self._train, config={**self._train.config, **eval_config})
        self._bridge = bridge_to(taskset, self._train.python)
        self._timeout_s, self._at_once = timeout_s, scored_at_once
        self.step_timeout_s = longest_call_s(max(timeout_s, LIST_TIMEOUT_S))
        self.reward_range = None if reward_range is None else (reward_range[0], reward_range[1])
        self._random = random.Random()
        self._task: Task | None = None
        self._episode: str | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TasksetTasks:
        """Return the tasks of `split`; the first call blocks until the taskset is read."""
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
        await self.close()
        task = task or await self._task_of(self._random.getrandbits(53) if seed is None else seed)
        if not isinstance(task.data.get("number"), int):
            raise EnvError(f"task {task.id} is none of a taskset: it has no number")
        found = await self._call("ask", task, timeout_s=LIST_TIMEOUT_S, digest=task.data["digest"])
        self._task, self._episode = task, found["episode"]
        self.tools = tuple(found["tools"])
        return found["messages"], {"task_id": task.id}

    async def step(self, action: Message) -> Step:
        """Send the reply to the taskset, which continues with its tools, its user, or a score.

        Raises:
            EnvError: there is no episode, or the taskset's code raised.
            InfraError: it took too long, had no turn in time, or its process died: the result
                is unknown.
        """
        task, self._task = self._task, None
        if task is None:
            raise EnvError("step without an episode: call reset first")
        episode, self._episode = self._episode, None
        calls = listed(action.get("tool_calls") or [])
        reply = {"content": _utf8(text_of(action)), "calls": [_call(call) for call in calls]}
        found = await self._call(
            "act", task, timeout_s=self._timeout_s, episode=episode, reply=reply
        )
        info: dict[str, Any] = {"task_id": task.id}
        answered = {message.get("tool_call_id") for message in found["messages"]}
        why = "the episode is over" if self.tools else "there are no tools"
        replies = [reply_to(c, f"error: {why}") for c in calls if c.get("id") not in answered]
        if replies:
            info["tool_errors"] = [message["content"] for message in replies]
        if "reward" not in found:
            self._task, self._episode = task, episode
            self.tools = tuple(found["tools"])
            return Step([*replies, *found["messages"]], 0.0, False, False, info)
        missing = [name for name, value in found["rewards"].items() if value is None]
        if missing or not math.isfinite(found["reward"]):
            raise EnvError(f"{self._train.taskset} rewards {found['rewards']}: not finite numbers")
        stop = "answer" if found["stop_reason"] == "agent_completed" else found["stop_reason"]
        info |= {
            "reward_components": found["rewards"],
            "metrics": found["metrics"],
            "stop_reason": stop,
        }
        is_cut = found["truncated"]
        said = [message for message in found["messages"] if message["role"] == "tool"]
        return Step([*replies, *said], found["reward"], not is_cut, is_cut, info)

    async def close(self) -> None:
        """Leave the episode that is under way, if any."""
        task, episode = self._task, self._episode
        self._task = self._episode = None
        if task is not None and episode is not None:
            self._bridge.tell("leave", source=self._source(task).to_json(), episode=episode)

    async def _call(self, name: str, task: Task, *, timeout_s: float, **args: Any) -> Any:
        where = {"source": self._source(task).to_json(), "index": task.data["number"]}
        return await self._bridge.call(
            name, timeout_s=timeout_s, at_once=self._at_once, **where, **args
        )

    async def _task_of(self, seed: int) -> Task:
        found = await asyncio.to_thread(
            TasksetTasks, self._train, self._held_out, "train", seed=seed
        )
        return found[0]

    def _source(self, task: Task) -> Source:
        source = self._held_out if task.data.get("held_out") else self._train
        if source is None:
            raise EnvError(f"task {task.id} is held out by an eval_config that is not given here")
        return source


def _call(call: Mapping[str, Any]) -> dict[str, str]:
    """Return a tool call in the form of verifiers, whatever the agent sent."""
    function = call.get("function")
    about = function if isinstance(function, Mapping) else {}
    arguments = about.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    named = {"id": str(call.get("id", "")), "name": str(about.get("name", "")), "arguments": text}
    return {key: _utf8(value) for key, value in named.items()}


def _utf8(text: str) -> str:
    """Return the text without lone surrogates, which no JSON parser over there accepts."""
    return text.encode("utf-8", "replace").decode()
