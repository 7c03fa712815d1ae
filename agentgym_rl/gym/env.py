"""The environment contract: Gym-like, async; one instance plays one episode at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from agentgym_rl.core import EnvError, Message, SeededTasks, Split, TaskSource, ToolSpec

if TYPE_CHECKING:
    from .sandbox import Sandbox

RESERVED_INFO = {
    "task_id": "id of the task that is played (from reset)",
    "env_id": "id of the environment that plays it, where one environment combines several",
    "over": "reward of a game that ended before the seat had a turn (from reset)",
    "episode": 'on the last step: {"r": sum of rewards, "l": steps, "t": seconds} (Gymnasium\'s)',
    "metrics": "numbers to average over episodes, by name",
    "turn_reward": "reward of the action's own turn, in units of advantage, besides `reward`",
    "reward_components": "parts of the reward, by name",
    "stop_reason": "reason of the end: answer, max_turns, or one of the environment's own",
    "invalid_action": "problem of an action that could not be executed",
    "tool_errors": "errors of the tool calls that failed, one text each",
    "verifier": "status of the verifier: ok, wrong, unparseable, timeout, or the env's own",
    "verifier_detail": "explanation of the status",
    "verifier_ms": "duration of the verification",
}
"""The keys of `info` with the same meaning in every environment; all are optional."""


class Step(NamedTuple):
    """The result of a step; unpacks like Gymnasium's five-tuple.

    `observation` holds only the NEW messages (roles user, tool, system). `terminated`: the task
    itself ended. `truncated`: a limit ended it. Reserved `info` keys: RESERVED_INFO.

    >>> from agentgym_rl import Step
    >>> messages, reward, *_ = Step([], 1.0, True, False, {"metrics": {"tries": 2}})
    >>> reward
    1.0
    """

    observation: list[Message]
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Origin(Protocol):
    """The specification from which an environment was made."""

    def task_source(self, split: Split, *, seed: int, **kwargs: Any) -> TaskSource:
        """Return the tasks of the environment, with the options with which it was made."""
        ...


class Env(ABC):
    """An async environment for chat agents, in Gymnasium's terms.

    Subclasses implement `reset` and `step`. `task_source` provides the tasks: by default an
    endless stream of seeds.

    >>> from agentgym_rl import Env, Step
    >>> class Guess(Env):
    ...     async def reset(self, *, seed=None, options=None):
    ...         self.number = str((seed or 0) % 10)
    ...         return [{"role": "user", "content": "Guess a digit."}], {}
    ...     async def step(self, action):
    ...         return Step([], float(action["content"] == self.number), True, False, {})
    """

    tools: Sequence[ToolSpec] = ()
    """The OpenAI function schemas offered to the agent; `reset` may set them."""

    spec: Origin | None = None
    """The `EnvSpec` of the environment; `make` sets it, and `make(env.spec)` makes another one."""

    max_turns: int | None = None
    """The maximum number of assistant messages of an episode; `make` truncates there, unless it is
    called with another limit."""

    step_timeout_s: float = 10.0
    """The time limit of `step` and `reset`; a longer call is a failure of the environment. `make`
    enforces it, unless it is called with another limit (a run's is `rollout.tool_timeout_s`)."""

    needs_sandboxes: bool = False
    """Whether `reset` needs `options["sandboxes"]`, a started `SandboxBackend`; a run uses the
    backend that `--sandbox` names."""

    holds_sandboxes: bool = False
    """Whether an episode keeps a sandbox from one step to the next; then the number of concurrent
    episodes is limited to that of sandboxes."""

    reward_range: tuple[float, float] | None = (0.0, 1.0)
    """The lowest and highest reward of an episode: `arl check` compares empty replies and gold
    answers with it. None: not known, since any play may win, as in games of chance."""

    uses_verifier: bool = False
    """Whether `reset` gets `options["verifier"]`, the run's started `VerifierPool`; a caller
    without a pool omits it (see `Verifier`)."""

    way_out: str = "Put waiting code behind `await`, such as asyncio.to_thread(function, ...)"
    """The advice in the error of a step that blocks the event loop for too long."""

    @abstractmethod
    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start an episode. `options["task"]` is the Task to play, if the caller has one.

        The same task (or seed) must give byte-equal first messages in any process.
        """

    @abstractmethod
    async def step(self, action: Message) -> Step:
        """Return the result of one assistant message, tool calls included. Hostile input never
        raises."""

    async def open_sandbox(self) -> Sandbox:
        """Return the sandbox of the episode, for agents that run inside it. The environment owns
        it, and ends it with the episode.

        Raises:
            EnvError: the environment has none for agents.
        """
        raise EnvError(
            "the environment has no sandbox for programs; use one that has, such as harbor:bugs"
        )

    async def close(self) -> None:
        """Release everything. Idempotent, bounded in time, safe after a failed reset."""
        return None

    def solve(self) -> Sequence[Message] | None:
        """Return the assistant messages of a perfect episode after `reset`; None: not known.

        `arl check` uses them to prove that tasks are solvable; agents never see them.
        """
        return None

    @property
    def unwrapped(self) -> Env:
        """Return the environment inside all wrappers, with the `task_source` of its own class. For
        a `SyncEnv` it is the async environment around it, whose `env` is the `SyncEnv` itself."""
        return self

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """Return the tasks of `split`. `options` are the options of the environment itself; an
        environment from `make` has its own options."""
        return SeededTasks(split, seed=seed)
