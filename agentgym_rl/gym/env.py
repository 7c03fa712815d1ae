"""The environment contract: Gym-like, async; one instance plays one episode at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from agentgym_rl.core.chat import Message, ToolSpec
from agentgym_rl.core.task import SeededTasks, Split, TaskSource

RESERVED_INFO = {
    "task_id": "id of the task that is played (from reset)",
    "env_id": "id of the environment that plays it, where one environment stands for several",
    "episode": 'on the last step: {"r": sum of rewards, "l": steps, "t": seconds} (Gymnasium\'s)',
    "metrics": "numbers to average over episodes, by name",
    "reward_components": "what the reward is made of, by name",
    "stop_reason": "why the episode ended: answer, max_turns, or the environment's own word",
    "invalid_action": "what was wrong with an action that could not be taken",
    "tool_errors": "what was wrong with the tool calls that failed, a text each",
    "verifier": "status of the verifier: ok, wrong, unparseable, timeout, or the env's own",
    "verifier_detail": "a sentence on it",
    "verifier_ms": "how long it took",
}
"""Keys of `info` that mean the same in every environment; all are optional."""


class Step(NamedTuple):
    """What a step returns; unpacks like Gymnasium's five-tuple.

    `observation` holds only the NEW messages (roles user, tool, system). `terminated`: the task
    itself ended. `truncated`: a limit ended it. Reserved `info` keys: RESERVED_INFO.
    """

    observation: list[Message]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Origin(Protocol):
    """What an environment was made of."""

    def task_source(self, split: Split, *, seed: int, **kwargs: Any) -> TaskSource:
        """The tasks of the environment, as it was made."""
        ...


class Env(ABC):
    """An async environment for chat agents (the words are Gymnasium's).

    Subclasses implement `reset` and `step`. Where the tasks come from is `task_source`: by
    default an endless stream of seeds.
    """

    tools: Sequence[ToolSpec] = ()
    """OpenAI function schemas offered to the agent; `reset` may set them."""

    spec: Origin | None = None
    """The `EnvSpec` it was made of; `make` sets it, and `make(env.spec)` makes another."""

    max_turns: int | None = None
    """Assistant messages an episode may have; `make` truncates there, unless told another limit."""

    step_timeout_s: float = 10.0
    """Longest `step` or `reset` that is still in order; a longer one is the environment's failure.
    `make` enforces it, unless told another limit (a run's is `rollout.tool_timeout_s`)."""

    needs_sandboxes: bool = False
    """Whether `reset` must be given `options["sandboxes"]`, a started `SandboxBackend`; a run's is
    the one that `--sandbox` names."""

    reward_range: tuple[float, float] | None = (0.0, 1.0)
    """Least and most that an episode pays: what `arl check` holds empty talk and gold answers
    against. None: an episode may be won by any play, as in games of chance."""

    uses_verifier: bool = False
    """Whether `reset` is given `options["verifier"]`, the run's started `VerifierPool`; who plays
    without one leaves it out (see `VerifierHandle`)."""

    @abstractmethod
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start an episode. `options["task"]` is the Task to play, when a runner gives one.

        The same task (or seed) gives byte-equal first messages in any process.
        """

    @abstractmethod
    async def step(self, action: Message) -> Step:
        """Answer one assistant message, tool calls included. Hostile input never raises."""

    async def close(self) -> None:
        """Release everything. Idempotent, bounded in time, safe after a failed reset."""
        return None

    def solve(self) -> Sequence[Message] | None:
        """The assistant messages of a perfect episode, right after `reset`; None: not known.

        What `arl check` proves tasks solvable with; agents never see it.
        """
        return None

    @property
    def unwrapped(self) -> Env:
        """The environment inside all wrappers: as its class is, `task_source` included. Of a
        `SyncEnv` it is the async one around it, whose `env` is the `SyncEnv` itself."""
        return self

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """The tasks of `split`. `options` are those the environment itself is made with; one that
        `make` made knows its own."""
        return SeededTasks(split, seed=seed)
