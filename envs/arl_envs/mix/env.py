"""An environment that consists of several members: each task names the member that plays it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agentgym_rl import ConfigError, Env, EnvError, Message, Step
from agentgym_rl.core import Split, first_task

from .members import Envs, members_of
from .source import MixTasks, opened


class MixEnv(Env):
    """An environment that plays each task in its member, and has the properties of that member.

    `envs` names the members: "math=2,code=1", or a list of tables with id, weight (default 1),
    options (all that `make` takes), and name (default: the id). Each member has its own limits;
    `info["env_id"]` of `reset` names the member that plays. Finite training data are shuffled in
    every epoch unless `shuffle` is False.

    Raises:
        ConfigError: no members, an unknown member, or options that a member does not take.
    """

    def __init__(self, *, envs: Envs, shuffle: bool = True) -> None:
        self._shuffle = shuffle
        self._members = {member.name: member for member in members_of(envs)}
        samples = [member.sample for member in self._members.values()]
        turns = [sample.max_turns for sample in samples if sample.max_turns is not None]
        self.max_turns = max(turns) if len(turns) == len(samples) else None
        self.step_timeout_s = max(sample.step_timeout_s for sample in samples)
        self.needs_sandboxes = any(sample.needs_sandboxes for sample in samples)
        self.holds_sandboxes = any(sample.holds_sandboxes for sample in samples)
        self.uses_verifier = any(sample.uses_verifier for sample in samples)
        ranges = {sample.reward_range for sample in samples}
        self.reward_range = ranges.pop() if len(ranges) == 1 else None
        self._made: dict[str, Env] = {}
        self._open = contextlib.AsyncExitStack()
        self._random = random.Random()
        self._playing: Env | None = None
        self._task_id = ""

    @classmethod
    def task_source(cls, split: Split, *, seed: int, envs: Envs, shuffle: bool = True) -> MixTasks:
        """Return the members' tasks of `split`, by weight."""
        return MixTasks(members_of(envs), split, seed=seed, shuffle=shuffle)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start `options["task"]`, or else the first training task of `seed`, in its member.

        Other options are passed to the member.

        Raises:
            EnvError: the task is not of a mix, or of a member that this mix does not have.
        """
        self._playing = None
        options = dict(options or {})
        task = options.pop("task", None)
        if task is None:
            seed = self._random.getrandbits(53) if seed is None else seed
            members = tuple(self._members.values())
            read = partial(MixTasks, members, "train", seed=seed, shuffle=self._shuffle)
            task = first_task(await asyncio.to_thread(read))
        name, inner = opened(task)
        env = self._member(name, task_id=task.id)
        for option, wanted in (
            ("sandboxes", env.needs_sandboxes),
            ("verifier", env.uses_verifier),
        ):
            if not wanted:
                options.pop(option, None)
        messages, info = await env.reset(seed=seed, options={**options, "task": inner})
        self.tools = env.tools
        self._playing, self._task_id = env, task.id
        within = info.get("env_id")  # set if the member is a mix itself
        env_id = f"{name}/{within}" if within else name
        return messages, {**info, "env_id": env_id, "task_id": task.id}

    async def step(self, action: Message) -> Step:
        """Step the member that plays.

        Raises:
            EnvError: there is no episode: `reset` was not called.
        """
        if self._playing is None:
            raise EnvError("step without an episode: call reset first")
        step = await self._playing.step(action)
        if "task_id" not in step.info:
            return step
        return step._replace(info={**step.info, "task_id": self._task_id})

    async def close(self) -> None:
        self._playing = None
        self._made.clear()
        await self._open.aclose()

    def solve(self) -> Sequence[Message] | None:
        return None if self._playing is None else self._playing.solve()

    def _member(self, name: str, *, task_id: str) -> Env:
        """Return the environment that plays the tasks of `name`, the same one every time."""
        if name not in self._members:
            known = ", ".join(self._members)
            raise EnvError(f"task {task_id} is of {name!r}; this mix has {known}")
        if name not in self._made:
            try:
                env = self._members[name].spec.make()
            except ConfigError as error:  # no ConfigError here: the sample could be made before
                raise EnvError(f"making {name}: {error}") from error
            self._made[name] = env
            self._open.push_async_callback(env.close)
        return self._made[name]
