"""An adapter from this package's environments to Gymnasium, without async.

    gymnasium.make("agentgym_rl.gym.gymnasium:arl/math-v0")

Gymnasium imports the module before the colon, which imports this one: it registers the ids of all
our environments. Then Gymnasium looks up the rest.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
from gymnasium import Space

from agentgym_rl import ConfigError, Env, EnvSpec, Message, Task, TaskSource, ToolSpec, wrappers
from agentgym_rl.core import Split, checked_task, is_list, is_mapping
from agentgym_rl.gym import registry

from .loop_thread import LoopThread

log = logging.getLogger(__name__)

_WORDS = ("yes", "no", "0", "1", "left", "right", "I do not know.", "\\boxed{0}")


class Reply(Space[Any]):
    """The space of actions: the text of a reply, or an assistant message (also with tool calls)."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short text; `mask` and `probability` have no meaning here."""
        return str(self.np_random.choice(_WORDS))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) or (is_mapping(x) and x.get("role") == "assistant")

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Messages(Reply):
    """The space of observations: lists of new messages."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return [{"role": "user", "content": super().sample()}]

    def contains(self, x: Any) -> bool:
        return is_list(x) and all(
            is_mapping(message) and isinstance(message.get("role"), str) for message in x
        )


def message_of(action: str | Message) -> Message:
    """Return an action of `Reply` as an assistant message.

    Raises:
        TypeError: the action is not valid.
    """
    if isinstance(action, str):
        return {"role": "assistant", "content": action}
    if is_mapping(action):
        return action
    raise TypeError(
        f"an action is a text or an assistant message, got {type(action).__name__}: {action!r:.80}"
    )


MARGIN_S = 10.0
"""The time, in seconds, to wait after the environment's own deadline has passed."""
SANDBOX_START_S = 120.0


class SyncGym(gymnasium.Env[list[Message], Any]):
    """A `gymnasium.Env` that plays the tasks of `env` (an id or an EnvSpec) one after another.

    An action is the text of a reply, or a complete assistant message; an observation is the list
    of new messages. `reset(seed=)` starts with the first task of that seed, `reset()` continues
    with the next. `options` and further arguments are those of `agentgym_rl.make`. `sandbox` names
    the backend for environments that run programs, started with the first `reset`. An environment
    with an option `id` takes it as `env_id`, because `gymnasium.make` has an `id` of its own.
    """

    metadata: ClassVar[dict[str, Any]] = {  # pyright: ignore[reportIncompatibleVariableOverride]
        "render_modes": ["ansi"],
        "render_fps": 1,  # Gymnasium requires it
    }

    def __init__(
        self,
        env: str | EnvSpec,
        *,
        render_mode: str | None = None,
        split: Split = "train",
        sandbox: str = "local",
        sandbox_options: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode: got {render_mode!r}, allowed: ansi")
        found = registry.spec(env) if isinstance(env, str) else env
        if found.argument == "id" and "env_id" in more:
            more["id"] = more.pop("env_id")
        self._arl_spec = found.with_options(**{**(options or {}), **more})
        self._env = _recorded(self._arl_spec.make(), render_mode)
        self._split: Split = split
        self._sandbox = (sandbox, dict(sandbox_options or {}))
        self._backend: Any = None
        self._loop: LoopThread | None = None
        self._tasks: TaskSource | None = None
        self._next = 0
        self.render_mode = render_mode
        self.action_space = Reply()
        self.observation_space = Messages()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Return the first messages of the next task, or of `options["task"]`, and `info`, which
        has `tools`.

        Raises:
            EnvError: `options["task"]` is not a Task, or an option is unknown.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        given = options.pop("task", None)
        task = self._next_task(seed) if given is None else checked_task(given)
        options["task"] = task
        if self._env.needs_sandboxes:
            options.setdefault("sandboxes", self._started())
        messages, info = self._run(self._env.reset(seed=task.seed, options=options))
        return list(messages), {**info, "tools": self.tools}

    @property
    def tools(self) -> list[ToolSpec]:
        """Return the tools that a reply may call, in the form of an OpenAI request."""
        return list(self._env.tools)

    def step(
        self, action: str | Message
    ) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        step = self._run(self._env.step(message_of(action)))
        info = dict(step.info)
        info.pop("episode", None)  # Gymnasium's own wrapper refuses to overwrite it
        return list(step.observation), step.reward, step.terminated, step.truncated, info

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the conversation so far, with render_mode="ansi"."""
        return self._env.render() if isinstance(self._env, wrappers.Record) else None

    def close(self) -> None:
        if self._loop is None:
            return
        try:
            self._run(self._env.close())
        finally:
            self._end_loop()
            self._loop = self._backend = None

    def _next_task(self, seed: int | None) -> Task:
        if seed is not None or self._tasks is None:
            seed = int(self.np_random.integers(2**53)) if seed is None else seed
            self._tasks, self._next = self._arl_spec.task_source(self._split, seed=seed), 0
        try:
            task = self._tasks[self._next]
        except IndexError:  # after the last task, begin again
            if self._next == 0:
                raise
            self._next = 0
            task = self._tasks[0]
        self._next += 1
        return task

    def _started(self) -> Any:
        if self._backend is None:
            backend = registry.make_sandbox(self._sandbox[0], **self._sandbox[1])
            self._thread().hold(backend, timeout_s=SANDBOX_START_S)
            self._backend = backend
        return self._backend

    def _run(self, work: Any) -> Any:
        return self._thread().run(work, timeout_s=self._env.step_timeout_s + MARGIN_S)

    def _thread(self) -> LoopThread:
        if self._loop is None:
            self._loop = LoopThread()
            self._end_loop = weakref.finalize(self, self._loop.close)
        return self._loop


def _recorded(env: Env, render_mode: str | None) -> Env:
    return env if render_mode is None else wrappers.Record(env)


_NAMESPACE = "arl"
_ENTRY_POINT = "agentgym_rl.gym.gymnasium:SyncGym"


def publish_all() -> None:
    """Register every environment with Gymnasium: those of plugins, those registered so far, and
    later ones as they are registered. Environments are imported when they are made."""
    for id in sorted(registry.names("env")):
        publish(id)
    registry.on_new_env(publish)


def publish(id: str) -> None:
    """Register the environment `id` with Gymnasium.

    An id that another package has registered there stays unchanged, with a warning.
    """
    theirs = gymnasium_id(id)
    known = gymnasium.registry.get(theirs)
    if known is not None and known.entry_point != _ENTRY_POINT:
        _warn(id, f"{theirs} belongs to {known.entry_point}")
        return
    gymnasium.registry.pop(theirs, None)  # `register(..., force=True)` means the new one
    try:
        gymnasium.register(  # pyright: ignore[reportUnknownMemberType]  # its `kwargs`: any dict
            theirs, entry_point=_ENTRY_POINT, kwargs={"env": id}
        )
    except gymnasium.error.Error as error:  # Gymnasium does not accept the form of the id
        _warn(id, error)


def gymnasium_id(id: str) -> str:
    """Return Gymnasium's id of the environment `id`: ids without a namespace are in `arl/`."""
    return id if "/" in id else f"{_NAMESPACE}/{id}"


def _warn(id: str, why: object) -> None:
    log.warning("gymnasium.make will not know the environment %s: %s", id, why)


publish_all()
