"""The environment under test, made by `make`: scripted agents play it, here or in another process,
and their episodes are recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from agentgym_rl.core import InfraError, Message, Split, Task, TaskSource
from agentgym_rl.gym import Env, EnvSpec, Spec, Step, SyncEnv, ToolError, to_async
from agentgym_rl.gym.data import TaskLoader
from agentgym_rl.gym.specs import wrapped
from agentgym_rl.gym.tool_env import SEEN, BadCall, NotJson
from agentgym_rl.gym.wrappers import StepTimeout

from .elsewhere import Elsewhere, look_elsewhere
from .policies import BAD_ANSWERS, IDLE, ORACLE, Policy, View, hostile
from .support import Closing, Spy, Wanted, first_tasks, shown

MAX_TURNS = 50
"""The most turns of an episode, if the environment has no limit of its own."""


_BY_ARGUMENTS = (ValueError, LookupError, ArithmeticError, OSError)


class Play:
    """An episode of `policy` with `task`, played turn by turn.

    An error of the environment ends the episode and is recorded; an InfraError is raised.
    """

    def __init__(
        self, env: Env, spy: Spy, task: Task, policy: Policy, given: Mapping[str, Any]
    ) -> None:
        self.env, self.spy, self.task, self.policy = env, spy, task, policy
        self._given = given
        self._spied = (len(spy.resets), len(spy.steps))
        self._view: View
        self.first: list[Message] | None = None
        """The first messages; None if `reset` failed."""
        self.info: dict[str, Any] = {}
        self.actions: list[Message] = []
        self.steps: list[Step] = []
        self.error: Exception | None = None
        """The exception that ended the episode, of the environment or of `make`'s wrappers."""
        self.raised: Exception | None = None
        """The exception of the environment itself, or the StepTimeout."""
        self.tools_that_ran = set[str]()
        """The tools of which a call returned, or raised ToolError."""
        self.tool_failures: dict[str, str] = {}
        """The first other exception of each tool, with its place; the exception itself would keep
        open what its frames have."""
        self.unsendable = ""
        """What is wrong with the first result of a tool that is no JSON."""

    async def start(self) -> bool:
        """Reset the environment; return whether that worked."""
        try:
            first, self.info = await self.env.reset(
                seed=self.task.seed, options={"task": self.task, **self._given}
            )
            gold = self.env.solve()
        except InfraError:
            raise
        except Exception as error:
            self._failed(error)
            return False
        self.first = list(first)
        self._view = View(list(first), self.env.tools, gold)
        return True

    @property
    def gold(self) -> int | None:
        """Return the number of messages that `solve` returned; None if it returned None."""
        return None if self._view.gold is None else len(self._view.gold)

    async def turn(self) -> bool:
        """Play one turn; return whether another may follow."""
        view = self._view
        action = self.policy.act(view)
        if action is None:
            return False
        self.actions.append(action)
        watched = SEEN.set(self._see)
        try:
            step = await self.env.step(action)
        except InfraError:
            raise
        except Exception as error:
            self._failed(error)
            return False
        finally:
            SEEN.reset(watched)
        self.steps.append(step)
        view.messages += [action, *step.observation]
        view.turn += 1
        return not self.ended and view.turn < (self.env.max_turns or MAX_TURNS)

    async def run(self, *, max_turns: int | None = None) -> Play:
        """Play the episode to its end, or `max_turns` of it; return self."""
        if await self.start():
            while await self.turn() and (max_turns is None or len(self.steps) < max_turns):
                pass
        return self

    def _see(self, tool: str, error: BaseException | None) -> None:
        """Record the end of a tool call. Calls that cannot be run say nothing about the tool, nor
        do errors that meaningless arguments may cause."""
        if error is None or isinstance(error, ToolError):
            self.tools_that_ran.add(tool)
        elif isinstance(error, NotJson):
            self.unsendable = self.unsendable or f"tool {tool!r:.100} {error}"
        elif not isinstance(error, BadCall) and (
            self.policy is ORACLE or not isinstance(error, _BY_ARGUMENTS)
        ):
            self.tool_failures.setdefault(tool, shown(error))

    def _failed(self, error: Exception) -> None:
        self.error = error
        self.raised = error if isinstance(error, StepTimeout) else self.spy.raised

    # ------------------------------------------------------------ results
    @property
    def ended(self) -> bool:
        """Return whether the last step ended the episode."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def reward(self) -> float:
        """Return the sum of the rewards of all steps."""
        return sum(step.reward for step in self.steps)

    @property
    def raw_resets(self) -> list[Any]:
        """Return the results of the environment's own `reset` in this play."""
        return self.spy.resets[self._spied[0] :]

    @property
    def raw_steps(self) -> list[Any]:
        """Return the results of the environment's own `step` in this play."""
        return self.spy.steps[self._spied[1] : self._spied[1] + len(self.actions)]

    def transcript(self) -> str:
        """Return the text that must be equal when the same episode is played again."""
        steps = [[s.observation, s.reward, s.terminated, s.truncated] for s in self.steps]
        return as_text([self.first, steps, type(self.error).__name__ if self.error else ""])

    def __str__(self) -> str:
        return f"{self.policy.name} on task {self.task.id}"


def as_text(value: Any) -> str:
    """Return `value` as JSON text; a part that is not JSON becomes its repr."""
    return json.dumps(value, default=repr)


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
        """The options of `reset` besides the task: the services that the environment needs."""
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

    async def many_tasks(self, count: int, split: Split = "train") -> list[Task]:
        """Return the same as `tasks`; other work runs between two tasks."""
        found: list[Task] = []
        for task in islice(TaskLoader(self.source(split)), count):
            found.append(task)
            await asyncio.sleep(0)
        return found

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
