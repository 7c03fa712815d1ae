"""A taskset of verifiers as an environment: its prompts, its tools, its user, its rewards."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgym_rl import ConfigError, EnvError, Message, Task
from agentgym_rl.core import Split, first_task
from agentgym_rl.gym.seats import MultiSeatEnv
from agentgym_rl.gym.tool_env import listed, reply_to, text_of

from .bridge import bridge_to, interpreter, longest_call_s
from .tasks import LIST_TIMEOUT_S, Source, TasksetTasks


class VerifiersEnv(MultiSeatEnv):
    """An environment with the tasks of `taskset`: an installed package, or a file ending in .py.

    `python` is the interpreter that has verifiers and the taskset (default: the value of
    ARL_VERIFIERS_PYTHON). `config` is the taskset's own; `eval_config`, on top of it, gives the
    held-out tasks, which are never trained on. Without it the hash of a prompt decides which tasks
    are held out. `num_tasks` limits a taskset, such as an endless one, to its first tasks.

    Tools of a taskset are called in its process. An environment that comes with it (or one that
    `env` names: `{"id": ..., "player": {"max_turns": 8}}`, the environment's own config) is the
    user, turn by turn. If it has several agents, each is a seat that needs a player
    (`rollout.seats`), which decides alone who is trained: there are no players of its own.

    The reward is the taskset's sum of weighted rewards; `arl check` tests it against
    `reward_range`. A reply may be processed for `timeout_s`, without the wait for others:
    `scored_at_once` replies are processed together. A value above 1 is right if the code waits, as
    for a judge, and wrong if it computes, as each reply would wait for the others. Tasksets that
    need a container or a runtime are refused.

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
        super().__init__()
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
        self._seats: tuple[str, ...] = ()
        self._new_messages: dict[str, list[Message]] = {}
        """The messages that each seat has not observed yet."""
        self._endings: dict[str, dict[str, Any]] = {}
        self._task: Task | None = None
        self._episode: str | None = None

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TasksetTasks:
        """Return the tasks of `split`; the first call blocks until the taskset is read."""
        env = cls(**options)
        return TasksetTasks(env._train, env._held_out, split, seed=seed)

    @property
    def seats(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the names of the agents. Blocks until the taskset is read, if it is not yet."""
        self._seats = self._seats or tuple(self._train.seats())
        return self._seats

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start `options["task"]`, or a training task of `seed`, with the one agent.

        Raises:
            ConfigError: see the class.
            EnvError: see `start`; or there are several agents.
            InfraError: the process that has the taskset failed.
        """
        if not self._seats:
            source = self._train.to_json()
            found = await self._bridge.call("seats", timeout_s=LIST_TIMEOUT_S, source=source)
            self._seats = tuple(found)
        number = self._random.getrandbits(53) if seed is None else seed
        return await super().reset(seed=number, options=options)

    async def start(self, *, seed: int, options: Mapping[str, Any]) -> None:
        """Begin `options["task"]`, or a training task of `seed`.

        Raises:
            EnvError: unknown options, a task of another taskset, or its code raised.
        """
        given = dict(options)
        task = given.pop("task", None)
        if given or not isinstance(task, Task | None):
            raise EnvError(f"reset options: got {sorted(given)}, task {task!r}; allowed: a task")
        await self.close()
        task = task or await self._task_of(seed)
        if not isinstance(task.data.get("number"), int):
            raise EnvError(f"task {task.id} is none of a taskset: it has no number")
        found = await self._call("ask", task, timeout_s=LIST_TIMEOUT_S, digest=task.data["digest"])
        self._task, self._episode = task, found["episode"]
        self._seats = tuple(found["messages"])
        self.rewards, self.truncated = dict.fromkeys(self._seats, 0.0), ()
        self._new_messages = {seat: [] for seat in self._seats}
        self._go_on(found)

    async def act(self, seat: str, action: Message) -> dict[str, Any]:
        """Send a reply to the taskset, which continues with its tools, another agent, or a score.

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
        answered = {message.get("tool_call_id") for message in found["messages"][seat]}
        why = "the episode is over" if self.tools else "there are no tools"
        replies = [reply_to(c, f"error: {why}") for c in calls if c.get("id") not in answered]
        if replies:
            info["tool_errors"] = [message["content"] for message in replies]
        self._new_messages[seat] += replies
        if found["seat"] is None:
            self._end(found["results"])
        else:
            self._task, self._episode = task, episode
        self._go_on(found)
        return info

    def observe(self, seat: str) -> list[Message]:
        messages, self._new_messages[seat] = self._new_messages[seat], []
        return messages

    def ending(self, seat: str) -> dict[str, Any]:
        return self._endings[seat]

    def own_action(self, seat: str, player: str) -> Message:
        raise ConfigError(f"seat {seat}: a taskset has no player {player!r}")

    def _go_on(self, found: Mapping[str, Any]) -> None:
        """Set the seat whose turn it is, and add the messages to each seat; at the end, only
        results of tools, as no other message would be answered."""
        self.turn = found["seat"]
        self.tools = tuple(found.get("tools", self.tools))
        for seat, messages in found["messages"].items():
            is_over = self.turn is None
            self._new_messages[seat] += [m for m in messages if m["role"] == "tool" or not is_over]

    def _end(self, results: Mapping[str, Any]) -> None:
        """Set the rewards of all seats."""
        for seat, found in results.items():
            missing = [name for name, value in found["rewards"].items() if value is None]
            if missing or not abs(found["reward"]) <= sys.float_info.max:
                raise EnvError(
                    f"{self._train.taskset} rewards {seat} {found['rewards']}: not finite numbers"
                )
        self.rewards = {seat: found["reward"] for seat, found in results.items()}
        self.truncated = [seat for seat, found in results.items() if found["truncated"]]
        self._endings = {
            seat: {
                "reward_components": found["rewards"],
                "metrics": found["metrics"],
                "stop_reason": "answer" if found["stop"] == "agent_completed" else found["stop"],
            }
            for seat, found in results.items()
        }

    async def close(self) -> None:
        """End the episode in progress, if there is one."""
        task, episode = self._task, self._episode
        self._task = self._episode = None
        if task is not None and episode is not None:
            self._bridge.notify("leave", source=self._source(task).to_json(), episode=episode)

    async def _call(self, name: str, task: Task, *, timeout_s: float, **args: Any) -> Any:
        where = {"source": self._source(task).to_json(), "index": task.data["number"]}
        return await self._bridge.call(
            name, timeout_s=timeout_s, at_once=self._at_once, **where, **args
        )

    async def _task_of(self, seed: int) -> Task:
        found = await asyncio.to_thread(
            TasksetTasks, self._train, self._held_out, "train", seed=seed
        )
        return first_task(found)

    def _source(self, task: Task) -> Source:
        source = self._held_out if task.data.get("held_out") else self._train
        if source is None:
            raise EnvError(f"task {task.id} is held out by an eval_config that is not given here")
        return source


def _call(call: Mapping[str, Any]) -> dict[str, str]:
    """Return a tool call in the form of verifiers, for any call of the agent."""
    function = call.get("function")
    about = function if isinstance(function, Mapping) else {}
    arguments = about.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    named = {"id": str(call.get("id", "")), "name": str(about.get("name", "")), "arguments": text}
    return {key: _utf8(value) for key, value in named.items()}


def _utf8(text: str) -> str:
    """Return the text without lone surrogates, which no JSON parser over there accepts."""
    return text.encode("utf-8", "replace").decode()
