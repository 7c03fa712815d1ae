"""Episodes that scripted agents play, and all there is to know of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentgym_rl.core.chat import Message
from agentgym_rl.core.errors import InfraError
from agentgym_rl.core.task import Task
from agentgym_rl.gym.env import Env, Step
from agentgym_rl.gym.wrappers import StepTimeout

from .policies import Policy, View
from .support import Spy

MAX_TURNS = 50
"""Of an episode without a limit of its own."""


class Play:
    """An episode of `policy` with `task`, a turn at a time.

    Whatever the environment does wrong ends it and is kept; infrastructure that fails is raised.
    """

    def __init__(
        self, env: Env, spy: Spy, task: Task, policy: Policy, given: Mapping[str, Any]
    ) -> None:
        self.env, self.spy, self.task, self.policy = env, spy, task, policy
        self._given = given
        self._spied = (len(spy.resets), len(spy.steps))
        self._view: View
        self.first: list[Message] | None = None
        """None: `reset` failed."""
        self.info: dict[str, Any] = {}
        self.actions: list[Message] = []
        self.steps: list[Step] = []
        self.error: Exception | None = None
        """What `make`'s environment raised: the environment itself, or the wrappers' checks."""
        self.raised: Exception | None = None
        """What the environment itself raised, or that it took too long."""

    async def start(self) -> bool:
        """Reset; whether it did."""
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
        """Number of messages that `solve` gave."""
        return None if self._view.gold is None else len(self._view.gold)

    async def turn(self) -> bool:
        """Play one; whether there may be another."""
        view = self._view
        action = self.policy.act(view)
        if action is None:
            return False
        self.actions.append(action)
        try:
            step = await self.env.step(action)
        except InfraError:
            raise
        except Exception as error:
            self._failed(error)
            return False
        self.steps.append(step)
        view.messages += [action, *step.observation]
        view.turn += 1
        return not self.ended and view.turn < (self.env.max_turns or MAX_TURNS)

    async def run(self, *, max_turns: int | None = None) -> Play:
        """All of it, or `max_turns`; itself."""
        if await self.start():
            while await self.turn() and (max_turns is None or len(self.steps) < max_turns):
                pass
        return self

    def _failed(self, error: Exception) -> None:
        self.error = error
        self.raised = error if isinstance(error, StepTimeout) else self.spy.raised

    # ------------------------------------------------------------ what came of it
    @property
    def ended(self) -> bool:
        """Whether the last step ended the episode."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def reward(self) -> float:
        """Of all steps."""
        return sum(step.reward for step in self.steps)

    @property
    def raw_resets(self) -> list[Any]:
        """What the environment itself returned, of this play."""
        return self.spy.resets[self._spied[0] :]

    @property
    def raw_steps(self) -> list[Any]:
        """What the environment itself returned, of this play."""
        return self.spy.steps[self._spied[1] : self._spied[1] + len(self.actions)]

    def transcript(self) -> str:
        """What must be the same whenever the same is played, as text."""
        said = [[s.observation, s.reward, s.terminated, s.truncated] for s in self.steps]
        return as_text([self.first, said, type(self.error).__name__ if self.error else ""])

    def __str__(self) -> str:
        return f"{self.policy.name} on task {self.task.id}"


def as_text(value: Any) -> str:
    """Canonical; what is no JSON as its repr."""
    return json.dumps(value, default=repr)
