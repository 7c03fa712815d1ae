"""The environment under test: made by `make`, played here, and played in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rl.core.task import Split, Task, TaskSource
from agentgym_rl.gym.env import Env
from agentgym_rl.gym.specs import EnvSpec, Spec, wrapped
from agentgym_rl.gym.sync_env import SyncEnv, to_async
from agentgym_rl.gym.wrappers import StepTimeout

from .elsewhere import Elsewhere, look_elsewhere
from .play import Play
from .policies import BAD_ANSWERS, IDLE, ORACLE, Policy, hostile
from .support import Closing, Spy, Wanted, first_tasks

SOURCE_SEED = 7
HOSTILE_TURNS = 3
"""The most turns in which a scripted agent sends a malformed message."""
NUM_HOSTILE = 2
"""The number of tasks on which malformed messages are tried."""


class Subject:
    """An environment under test; episodes that several criteria judge are played once."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        episodes: int,
        given: Mapping[str, Any],
        wanted: Wanted,
        closing: Closing,
    ) -> None:
        self.spec = spec
        self.cls = spec.load()
        self.episodes = episodes
        self.given = given
        """The options of `reset` besides the task: the services that the environment asks for."""
        self.closing = closing
        self._wanted = wanted
        self._plays: list[Play] = []
        self._elsewhere: Elsewhere | None = None

    # ------------------------------------------------------------ making
    def make(self, **limits: Any) -> tuple[Env, Spy]:
        """Make a new environment; return it and the spy inside it."""
        spec = self.spec.with_options(**limits)
        made = Spec.make(spec)
        env = to_async(made) if isinstance(made, SyncEnv) else made
        env.spec = spec
        spy = Spy(env)
        return wrapped(spy, spec), spy

    # ------------------------------------------------------------ tasks
    def source(self, split: Split = "train") -> TaskSource:
        """Return the tasks of a split."""
        return self.spec.task_source(split, seed=SOURCE_SEED)

    def tasks(self, count: int, split: Split = "train") -> list[Task]:
        """Return the first `count` tasks, or all if there are fewer."""
        return first_tasks(self.source(split), count)

    # ------------------------------------------------------------ playing
    def play(self, task: Task, policy: Policy, **limits: Any) -> Play:
        """Return a play in a new environment, not started."""
        env, spy = self.make(**limits)
        return Play(env, spy, task, policy, self.given)

    async def played(
        self, task: Task, policy: Policy, *, turns: int | None = None, **limits: Any
    ) -> Play:
        """Play an episode, or its first `turns`, in a new environment that is closed afterwards."""
        play = self.play(task, policy, **limits)
        try:
            return await play.run(max_turns=turns)
        finally:
            await self.closing.close(play.env)

    async def plays(self) -> Sequence[Play]:
        """Return the plays that most criteria judge: every scripted agent on the first tasks.

        The list ends early with a step that hangs."""
        if not self._plays:
            for number, task in enumerate(self.tasks(self.episodes)):
                await self._play_all(task, with_hostile=number < NUM_HOSTILE)
                if isinstance(self._plays[-1].error, StepTimeout):
                    break
        return self._plays

    async def _play_all(self, task: Task, *, with_hostile: bool) -> None:
        for policy in (ORACLE, *IDLE, *BAD_ANSWERS):
            self._plays.append(await self.played(task, policy))
            if isinstance(self._plays[-1].error, StepTimeout):
                return
        for policy in hostile(self._plays[-1].env.tools) if with_hostile else ():
            self._plays.append(await self.played(task, policy, turns=HOSTILE_TURNS))
            if isinstance(self._plays[-1].error, StepTimeout):
                return

    # ------------------------------------------------------------ elsewhere
    async def elsewhere(self) -> Elsewhere:
        """Return the results of a second process for the same spec."""
        if self._elsewhere is None:
            self._elsewhere = await look_elsewhere(
                self.spec,
                wanted=self._wanted,
                source_seed=SOURCE_SEED,
                count=self.episodes,
                close_s=self.closing.limit_s,
            )
        return self._elsewhere
