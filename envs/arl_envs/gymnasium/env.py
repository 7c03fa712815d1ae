"""A Gymnasium environment for chat agents: replies are actions, observations are messages."""

from __future__ import annotations

import copy
import json
import re
import weakref
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import gymnasium

from agentgym_rl import ConfigError, Message, Step, SyncEnv, TaskSource
from agentgym_rl.core import Split, checked_task, derived_number
from agentgym_rl.gym.env_process import ProcessEnv
from agentgym_rl.gym.sync_env import Executor, check_executor
from agentgym_rl.gym.tool_env import listed, reply_to, text_of

from .actions import actions_of
from .observations import MAX_NUMBERS, check_readable, describe, num_numbers, plain
from .oracle import shortest_path
from .tasks import tasks_of
from .toy_text import Words, words_of

DEFAULT_MAX_TURNS = 200
"""The number of turns of an episode if the environment itself has no limit of steps."""

_HIGHLIGHT = re.compile(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class GymnasiumEnv(SyncEnv):
    """An environment that plays `gymnasium.make(id, **kwargs, **options)` by text replies.

    Rewards, `terminated` and `truncated` are the environment's own; a task is a seed, held out by
    the opening of its episode. A reply that is no action is played as a random one, drawn by the
    episode's seed, and counted: so nonsense is worth what random play is, whatever actions cost.

    `actions` names the actions of a Discrete space (those of the toy-text environments, and of
    environments with an enum `actions` such as MiniGrid's, have names); `render="ansi"` puts the
    drawing of the environment before each observation, or in the place of one that is too large to
    be put into words; `executor="thread"` is for an environment with slow steps,
    `executor="process"` for one that may hang, crash, or that lives once in a process.

    Raises:
        ConfigError: Gymnasium cannot make it, or it cannot be played in text.
    """

    reward_range = None
    """An open range: any play may win an episode, as random play sometimes does."""

    def __init__(
        self,
        *,
        id: str = "",
        kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        render: Literal["ansi"] | None = None,
        executor: Executor = "inline",
        **options: Any,
    ) -> None:
        check_executor(executor)
        if render not in (None, "ansi"):
            raise ConfigError(f'render: got {render!r}, allowed: "ansi"')
        self.executor = executor
        self._drawn = render == "ansi"
        drawing = {"render_mode": "ansi"} if self._drawn else {}
        self._env = _made(id, {**(kwargs or {}), **options, **drawing})
        self._words = words_of(id)
        self._shows_observation = (
            not self._drawn or num_numbers(self._env.observation_space) <= MAX_NUMBERS
        )
        if not self._drawn:
            check_readable(self._env.observation_space)
        names = _action_names(self._env, self._words) if actions is None else actions
        self._actions = actions_of(self._env.action_space, names)
        self._chance = copy.deepcopy(self._env.action_space)
        """The space that random actions are drawn from; the environment's own stays unchanged."""
        limit = self._env.spec.max_episode_steps if self._env.spec else None
        self.max_turns = limit or DEFAULT_MAX_TURNS
        self._invalid = 0
        self._task: dict[str, Any] = {}

    @classmethod
    def task_source(cls, split: Split, *, seed: int, **options: Any) -> TaskSource:
        """Return endless tasks, one per seed; see `tasks`."""
        made = cls(**options)
        apart = made.executor == "process"
        env = ProcessEnv(made, timeout_s=made.step_timeout_s) if apart else made

        def opening(seed: int) -> str:
            return json.dumps(env.reset(seed=seed)[0])

        source = tasks_of(opening, split, seed=seed)
        weakref.finalize(source, env.close)
        return source

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Start the episode of `options["task"]`'s seed, or of `seed`; other `options` go to the
        environment.

        Raises:
            EnvError: the value is not a Task.
        """
        theirs = dict(options or {})
        task = theirs.pop("task", None)
        if task is not None:
            seed = checked_task(task).seed
        observation, info = self._env.reset(seed=seed, options=theirs or None)
        if seed is not None:  # a seed other than the environment's own
            self._chance.seed(derived_number(f"{seed}/no action"))
        self._invalid = 0
        self._task = {} if task is None else {"task_id": task.id}
        rules = f"{self._words.rules(self._env.unwrapped)}\n" if self._words else ""
        messages: list[Message] = [
            {"role": "system", "content": self._actions.instruction},
            {"role": "user", "content": rules + self._shown(observation)},
        ]
        return messages, self._info(info)

    def step(self, action: Message) -> Step:
        """Take the action that the reply names; if it names none, answer with the allowed ones and
        take a random action."""
        calls = action.get("tool_calls")
        if calls:
            replies = [reply_to(call, self._actions.instruction) for call in listed(calls)]
            return self._guess("there are no tools: the reply itself is the action", replies)
        text = text_of(action)
        chosen = self._actions.read(text)
        if chosen is None:
            return self._guess(f"no action: {text[-80:]!r}", [])
        return self._take(chosen)

    def close(self) -> None:
        self._env.close()

    def solve(self) -> Sequence[Message] | None:
        path = shortest_path(self._env.unwrapped)
        if path is None:
            return None
        return [{"role": "assistant", "content": self._actions.say(action)} for action in path]

    def _guess(self, problem: str, replies: list[Message]) -> Step:
        self._invalid += 1
        step = self._take(
            self._chance.sample(),
            f"That was no action; a random one was taken. {self._actions.instruction}\n",
        )
        observation = [*replies, *step.observation]
        return step._replace(observation=observation, info=step.info | {"invalid_action": problem})

    def _take(self, chosen: Any, preface: str = "") -> Step:
        observation, reward, terminated, truncated, info = self._env.step(chosen)
        info = self._info(info)
        if terminated or truncated:
            info["stop_reason"] = "terminated" if terminated else "max_episode_steps"
        message = {"role": "user", "content": preface + self._shown(observation)}
        return Step([message], float(reward), bool(terminated), bool(truncated), info)

    def _info(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return our info, with the environment's own info below "gymnasium"."""
        metrics = {"invalid_actions": self._invalid}
        return {**self._task, "metrics": metrics, "gymnasium": plain(theirs)}

    def _shown(self, observation: Any) -> str:
        drawing = _drawing(self._env.render()) if self._drawn else ""
        if not self._shows_observation:
            return drawing
        if self._words:
            text = self._words.observe(self._env.unwrapped, observation)
        else:
            text = describe(observation)
        return f"{drawing}\n{text}" if self._drawn else text


def _action_names(env: gymnasium.Env[Any, Any], words: Words | None) -> Sequence[str] | None:
    """Return the names of the actions of a toy-text environment, or those of the enum `actions` of
    another one, if it has one for its Discrete space."""
    if words:
        return words.actions
    kind: Any = getattr(env.unwrapped, "actions", None)
    space = env.action_space
    if not (isinstance(kind, type) and issubclass(kind, Enum)) or not isinstance(
        space, gymnasium.spaces.Discrete
    ):
        return None
    named = {int(one.value): one.name for one in kind if isinstance(one.value, int)}
    first = int(space.start)
    names = [named.get(number, "") for number in range(first, first + int(space.n))]
    return names if all(names) and len({name.casefold() for name in names}) == len(names) else None


def _made(id: str, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    if not id:
        raise ConfigError("no environment of Gymnasium is named: say --env gymnasium:FrozenLake-v1")
    try:
        return gymnasium.make(id, **options)
    except Exception as error:  # third-party code
        raise ConfigError(
            f"gymnasium.make({id!r}, **{dict(options)}): {type(error).__name__}: {error}"
        ) from error


def _drawing(drawn: Any) -> str:
    """Return an ANSI drawing as text, with highlighted parts (the agent's place) in brackets."""
    return _ESCAPE.sub("", _HIGHLIGHT.sub(r"[\1]", str(drawn))).strip("\n")
