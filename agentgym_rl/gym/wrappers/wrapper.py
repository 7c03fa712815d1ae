"""The base class of all wrappers, which forwards everything, and the small wrappers.

The small wrappers refuse steps outside an episode, limit turns, check results against the contract,
replace the reward, and record messages and rewards.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from types import CoroutineType
from typing import Any, TypeVar, cast

from agentgym_rl.core import (
    ConfigError,
    EnvError,
    Message,
    TaskSource,
    ToolSpec,
    added_reward,
    definition_of,
    is_dict,
    is_list,
    is_mapping,
    is_tuple,
    text_message,
)
from agentgym_rl.gym.env import Env, Origin, Step
from agentgym_rl.gym.sandbox import Sandbox
from agentgym_rl.runtime import import_object

T = TypeVar("T")


def checked_limit(name: str, value: object) -> int:
    """Return a limit of turns or attempts.

    Raises:
        ConfigError: it is not a whole number above 0.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}: got {value!r}, expected a whole number above 0")
    return value


class _Tasks:
    """The descriptor `task_source` of a wrapper: it returns the tasks of the wrapped environment,
    as it was made. On a wrapper class, which wraps no environment, it is `Env`'s."""

    def __get__(self, wrapper: Wrapper | None, owner: type[Wrapper]) -> Callable[..., TaskSource]:
        if wrapper is None:
            return Env.task_source
        return (wrapper.spec or wrapper.env).task_source


class Wrapper(Env):
    """A wrapper that forwards everything to `env`, including unknown attributes; subclasses
    override what they change."""

    task_source = _Tasks()  # pyright: ignore[reportAssignmentType]

    def __init__(self, env: Env) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet: during unpickling, or after a failed constructor
            raise AttributeError(name)
        return getattr(self.env, name)

    # Env has these as class attributes, so __getattr__ would never be called for them.
    @property
    def tools(self) -> Sequence[ToolSpec]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.tools

    @property
    def spec(self) -> Origin | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.spec

    @spec.setter
    def spec(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, spec: Origin | None
    ) -> None:
        self.env.spec = spec

    @property
    def max_turns(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.max_turns

    @property
    def step_timeout_s(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.step_timeout_s

    @property
    def needs_sandboxes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.needs_sandboxes

    @property
    def holds_sandboxes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.holds_sandboxes

    @property
    def reward_range(self) -> tuple[float, float] | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.reward_range

    @property
    def uses_verifier(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.uses_verifier

    @property
    def way_out(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.way_out

    @property
    def unwrapped(self) -> Env:
        return self.env.unwrapped

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Message) -> Step:
        return await self.env.step(action)

    async def open_sandbox(self) -> Sandbox:
        return await self.env.open_sandbox()

    async def close(self) -> None:
        await self.env.close()

    def solve(self) -> Sequence[Message] | None:
        return self.env.solve()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.env!r})"


class OrderEnforcing(Wrapper):
    """A wrapper that makes `step` before `reset`, or after the episode's end, an error."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._missing = "call reset first"

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        self._missing = "reset failed, or is not finished"
        found = await self.env.reset(seed=seed, options=options)
        self._missing = ""
        return found

    async def step(self, action: Message) -> Step:
        """Forward the step.

        Raises:
            EnvError: there is no episode.
        """
        if self._missing:
            raise EnvError(f"step without an episode: {self._missing}")
        step = await self.env.step(action)
        if step.terminated or step.truncated:
            self._missing = "the last one has ended; call reset"
        return step

    async def close(self) -> None:
        self._missing = "the environment is closed"
        await self.env.close()


class TurnLimit(Wrapper):
    """A wrapper that truncates the episode at step `max_turns`, unless that step ends it anyway.

    Raises:
        ConfigError: `max_turns` is not a whole number above 0.
    """

    def __init__(self, env: Env, max_turns: int) -> None:
        super().__init__(env)
        self._max_turns = checked_limit("max_turns", max_turns)
        self._turns = 0

    @property
    def max_turns(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._max_turns

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        self._turns = 0
        return await self.env.reset(seed=seed, options=options)

    async def step(self, action: Message) -> Step:
        step = await self.env.step(action)
        self._turns += 1
        if self._turns < self._max_turns or step.terminated or step.truncated:
            return step
        return step._replace(truncated=True, info={**step.info, "stop_reason": "max_turns"})


class PassiveChecker(Wrapper):
    """A checker of the results of `reset` and `step`; `arl check` judges their behaviour."""

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        return await self._checked(
            "reset", checked_reset, self.env.reset(seed=seed, options=options)
        )

    async def step(self, action: Message) -> Step:
        return await self._checked("step", checked_step, self.env.step(action))

    async def _checked(self, method: str, check: Callable[[Any], T], call: Any) -> T:
        """Return the checked result of a call of the environment.

        Raises:
            BrokenContract: the method is not async, or its result is refused.
        """
        if type(call) is not CoroutineType and not isawaitable(call):
            problem: str | Exception = _NOT_ASYNC
        else:
            result = cast("Any", await call)
            try:
                return check(result)
            except (TypeError, ValueError) as error:
                problem = error
        own: Any = getattr(self.env, "env", None)  # the SyncEnv, if it is one
        targets = (getattr(self.env, method), getattr(own, method, None), type(self.env))
        place = next(filter(None, (definition_of(it) for it in targets if it)), "")
        raise BrokenContract(f"env.{method}: {problem}{f' ({place})' if place else ''}")


class BrokenContract(EnvError, TypeError, ValueError):
    """The error of an environment whose `reset` or `step` does not keep the contract."""


_NOT_ASYNC = (
    "the method is `def`, without `async`: write `async def`, or derive the class from SyncEnv in "
    "place of Env, whose `reset`, `step` and `close` are plain `def`"
)
_NOT_AWAITED = (
    "a coroutine: `await` is missing before a call, or a SyncEnv has an `async def`: derive the "
    "class from Env"
)


def checked_reset(result: Any) -> tuple[list[Message], dict[str, Any]]:
    """Check the result of an environment's `reset`; return it with message content as text.

    Raises:
        TypeError: it is not (messages, info).
        ValueError: a message has a part that is not text.
    """
    match result:
        case (messages, info) if is_list(messages) and is_dict(info) and _are_messages(messages):
            return _as_text(messages), info
        case _:
            raise TypeError(
                f"{_odd(result)}: expected (list of messages, info), such as "
                '[{"role": "user", "content": "..."}], {}'
            )


def _odd(result: Any) -> str:
    """Return what is wrong with the result of `reset` or `step`."""
    if result is None:
        return "got None, as without `return`"
    parts = list(result) if is_tuple(result) else []
    for part in (result, *parts):
        if iscoroutine(part):
            part.close()  # nothing awaits it
            return f"got {_NOT_AWAITED}"
    if is_list(result):
        return "got the messages alone, without the info: return messages, {}"
    if len(parts) == 2 and isinstance(parts[0], str):
        return f"got the text {parts[0]!r:.80} in place of messages"
    if len(parts) == 4:
        return f"got four values, {result!r:.200}: `done` is two, `terminated` and `truncated`"
    if len(parts) != 5:
        return f"got {result!r:.200}"
    _, reward, _, _, info = parts
    if not is_dict(info):
        return f"info is {info!r:.80}"
    if not isinstance(reward, int | float):
        return f"the reward is {reward!r:.80}"
    return f"info['metrics'] is {info.get('metrics')!r:.80}"


def checked_step(result: Any) -> Step:
    """Check the result of an environment's `step`; return it as a Step. Numpy scalars are allowed.

    Raises:
        TypeError, ValueError: it is not a five-tuple of the contract's types, or has a number that
            is not finite.
    """
    if type(result) is Step and _is_plain(*result):
        added_reward(0.0, result.reward, what="the reward")
        return result
    try:
        observation, given, terminated, truncated, info = result
        reward = float(given)
        metrics = info.get("metrics")
        if metrics:
            # A part that is None does not apply to this episode.
            metrics = {key: float(value) for key, value in metrics.items() if value is not None}
    except (TypeError, ValueError, AttributeError) as error:
        raise TypeError(
            f"{_odd(result)}; expected Step(messages, reward, terminated, truncated, "
            "info) with numbers as reward and as values of info['metrics']"
        ) from error
    if not is_list(observation) or not _are_messages(observation):
        raise TypeError(
            f"the observation is {observation!r:.200}; expected a list of the new messages, such "
            'as [{"role": "user", "content": "..."}], or [] at the end'
        )
    added_reward(0.0, reward, what="the reward")
    if metrics and not all(map(math.isfinite, metrics.values())):
        raise ValueError(f"the metrics must be finite, got {metrics}")
    if metrics or info.get("metrics"):
        info = {**info, "metrics": metrics}
    return Step(_as_text(observation), reward, bool(terminated), bool(truncated), info)


def _is_plain(observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> bool:
    """Return whether a step with a finite reward needs no change, as most steps do."""
    if not is_dict(info) or info.get("metrics") or not is_list(observation):
        return False
    for message in observation:
        if not is_dict(message) or is_list(message.get("content")):
            return False
    return type(reward) is float and type(terminated) is type(truncated) is bool


def _are_messages(items: list[Any]) -> bool:
    """Return whether all items are mappings."""
    return all(map(is_mapping, items))


def _as_text(messages: list[Message]) -> list[Message]:
    """Return the messages with lists of parts joined to one text: later code reads only text."""
    for message in messages:
        if is_list(message.get("content")):
            return [text_message(message) for message in messages]
    return messages


RewardFunction = Callable[[Step], float]


class TransformReward(Wrapper):
    """A wrapper that replaces the reward of a step by `function(step)`; `function` may be
    "module:function".

    The environment's own reward is kept in `info["reward_components"]["unshaped"]`.
    """

    def __init__(self, env: Env, function: RewardFunction | str) -> None:
        super().__init__(env)
        self._function: RewardFunction = (
            import_object(function) if isinstance(function, str) else function
        )

    async def step(self, action: Message) -> Step:
        step = await self.env.step(action)
        components = {**step.info.get("reward_components", {}), "unshaped": step.reward}
        return step._replace(
            reward=float(self._function(step)), info={**step.info, "reward_components": components}
        )


class Record(Wrapper):
    """A wrapper that keeps the transcript and adds `info["episode"]` to the last step.

    The value is Gymnasium's {"r": sum of rewards, "l": steps, "t": seconds since reset}. `render()`
    returns the transcript as text.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.transcript: list[Message] = []
        """The messages of the episode so far, including the agent's; the list is not shared."""
        self._return, self._steps, self._start = 0.0, 0, 0.0

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        messages, info = await self.env.reset(seed=seed, options=options)
        self.transcript = list(messages)
        self._return, self._steps, self._start = 0.0, 0, time.monotonic()
        return messages, info

    async def step(self, action: Message) -> Step:
        step = await self.env.step(action)
        self.transcript += [action, *step.observation]
        self._return += step.reward
        self._steps += 1
        if not (step.terminated or step.truncated):
            return step
        seconds = time.monotonic() - self._start
        episode = {"r": self._return, "l": self._steps, "t": seconds}
        return step._replace(info={**step.info, "episode": episode})

    def render(self) -> str:
        """Return the transcript as text, one paragraph per message."""
        return "\n\n".join(f"[{m.get('role', '?')}] {_shown(m)}" for m in self.transcript)


def _shown(message: Message) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    calls = message.get("tool_calls")
    return "\n".join(filter(None, [text, json.dumps(calls) if calls else ""]))
