"""The specs from which environments, agents and sandboxes are made: plain JSON, so that they can be
sent to other processes.

A spec needs no registry in the other process: its entry point names the class. Its options are JSON
values: objects, arrays, strings, numbers, true, false and null.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentgym_rl.core import (
    ArlError,
    ConfigError,
    Split,
    TaskSource,
    explain,
    is_dict,
    is_list,
    is_tuple,
    key_faults,
    near_match,
    path_of,
)
from agentgym_rl.gym.wrappers.attempts import FEEDBACK
from agentgym_rl.runtime import import_object, whose

from .agent import Agent
from .env import Env
from .sandbox import SandboxBackend
from .sync_env import SyncEnv, to_async
from .wrappers import Attempts, OrderEnforcing, PassiveChecker, Timeout, TurnLimit

SAY_AFTER_S = 2.0
"""The time, in seconds, after which the log reports that tasks are still being read."""
_log = logging.getLogger(__name__)
_MAPS = (dict,)
_SERIES = (list, tuple, set)
"""The exact types of values that are copied; objects of their subclasses are shared."""


def copied(value: Any) -> Any:
    """Return `value` with its dicts, lists and sets copied at every depth; other objects are
    shared."""
    if type(value) in _MAPS:
        return {name: copied(item) for name, item in value.items()}
    if type(value) in _SERIES:
        return type(value)(copied(item) for item in value)
    return value


def not_json(value: Any, name: str) -> str:
    """Return the first part of `value` that JSON cannot express, by its path from `name`, as in
    "kwargs.when is a date"; "" if there is none."""
    match value:
        case None | str() | int():
            return ""
        case float():
            return "" if math.isfinite(value) else f"{name} is {value}"
        case _ if is_list(value) or is_tuple(value):
            found = (not_json(item, f"{name}[{place}]") for place, item in enumerate(value))
        case _ if is_dict(value):
            found = (
                not_json(item, f"{name}.{key}")
                if isinstance(cast(Any, key), str)
                else f"{name} has the key {key!r}"
                for key, item in value.items()
            )
        case _:
            return f"{name} is a {type(value).__name__}"
    return next(filter(None, found), "")


Kind = Literal["env", "agent", "sandbox"]
_BASES: dict[Kind, tuple[type, ...]] = {
    "env": (Env, SyncEnv),
    "agent": (Agent,),
    "sandbox": (SandboxBackend,),
}


class Spec(BaseModel):
    """The description of how to make an environment, an agent or a sandbox."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: Kind
    entry_point: str
    """The class, as `module:Class`; called with `kwargs` and the options of `make`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    description: str = ""
    argument: str = ""
    """The option that is set to `<value>` by an id of the form `<name>:<value>`, as in
    `gymnasium:FrozenLake-v1`; empty: the id takes no value."""

    def to_json(self) -> str:
        """Return the spec as JSON; raise ConfigError if JSON cannot express a value in it."""
        if problem := not_json(_fields(self), "spec"):
            raise ConfigError(f"the spec of {self.id} is no JSON: {problem}")
        try:
            return self.model_dump_json()
        except ValueError as error:  # such as a lone surrogate
            raise ConfigError(f"the spec of {self.id} is no JSON: {error}") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the spec in the output of `to_json`; raise ConfigError on any other text."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"no {cls.__name__}: {error}") from error

    def load(self) -> type[Any]:
        """Import the class of the entry point.

        Raises:
            ConfigError: the entry point cannot be imported or is of another kind.
        """
        target = import_object(self.entry_point)
        bases = _BASES[self.kind]
        if not (isinstance(target, type) and issubclass(target, bases)):
            module, _, name = self.entry_point.partition(":")
            base = bases[0].__name__
            raise ConfigError(
                f"{self.entry_point} is {target!r}, expected a subclass of agentgym_rl.{base}"
                f"{whose(module) or f', as in class {name}({base})'}"
            )
        return target

    def make(self, **kwargs: Any) -> Any:
        """Make a new instance.

        Raises:
            ConfigError: the class cannot be imported, or does not take these options.
        """
        cls, options = self.load(), self.kwargs | kwargs
        try:
            return cls(**copied(options))
        except ArlError:  # its message is complete
            raise
        except (Exception, SystemExit) as error:  # foreign code
            raise self._refused("be made", options, error) from error

    def _refused(self, what: str, options: Mapping[str, Any], error: BaseException) -> ConfigError:
        refusing = _refusing(self.load(), error)
        known = _parameters(refusing)
        takes = f"{known}, set as --{self.kind}.options.NAME=VALUE" if known else "no options"
        near = _near(refusing, error, also=_OF_MAKE if self.kind == "env" else ())
        first, newline, source = explain(error).partition("\n")
        if source.startswith("\n") and isinstance(error, TypeError) and "argument" in first:
            newline = source = ""  # no traceback where the signature says all
        return ConfigError(
            f"{self.kind} {self.id} cannot {what} with options {dict(options)}: {first}{near}; "
            f"it takes {takes}{newline}{source}"
        )


class WrapperSpec(BaseModel):
    """A user's own wrapper: `entry_point` ("module:Class") is called with the env and `kwargs`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entry_point: str
    kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        """Accept "module:Class" or the class alone, for a wrapper without kwargs."""
        if isinstance(value, (type, FunctionType)):
            value = path_of(value)
        elif is_dict(value) and isinstance(given := value.get("entry_point"), (type, FunctionType)):
            return {**value, "entry_point": path_of(given)}
        return {"entry_point": value} if isinstance(value, str) else value

    def wrap(self, env: Env) -> Env:
        """Return `env` inside a new wrapper.

        Raises:
            ConfigError: the wrapper cannot be imported, raises an error, or does not return an Env.
        """
        try:
            wrapped = import_object(self.entry_point)(env, **copied(self.kwargs))
        except ArlError:
            raise
        except (Exception, SystemExit) as error:  # foreign code
            raise ConfigError(
                f"wrapper {self.entry_point} with {self.kwargs}: {explain(error)}"
            ) from error
        if not isinstance(wrapped, Env):
            raise ConfigError(f"wrapper {self.entry_point} gave {wrapped!r}, expected an Env")
        return wrapped


class EnvSpec(Spec):
    """The spec of an environment with its wrappers (`gym.wrappers` shows their order)."""

    kind: Literal["env"] = "env"  # pyright: ignore[reportIncompatibleVariableOverride]
    max_turns: int | None = Field(default=None, ge=1)
    """The maximum number of assistant messages of an episode; None: the environment's own limit."""
    step_timeout_s: float | None = Field(default=None, gt=0)
    """The time limit of a step, in seconds; None: the environment's own limit."""
    wrappers: tuple[WrapperSpec, ...] = ()
    """The user's own wrappers, innermost first."""
    max_attempts: int = Field(default=1, ge=1)
    """The number of times a task may be tried in an episode (see `wrappers.Attempts`)."""
    feedback: str = FEEDBACK
    """The message to the agent after an attempt without success. This and the next two fields have
    no effect unless `max_attempts` is above 1."""
    retry_discount: float = Field(default=1.0, ge=0, le=1)
    """The factor of the reward for each earlier attempt."""
    success_reward: float = 1.0
    """The least reward of a successful attempt."""

    def load(self) -> type[Any]:
        """Import the class of the entry point.

        Raises:
            ConfigError: the class cannot be imported, is not an environment, or has a parameter
                with the name of an option of `make`.
        """
        cls = super().load()
        if taken := _taken(cls):
            raise ConfigError(
                f"{self.id}: {self.entry_point} has the parameter {', '.join(taken)}, which it "
                "would never get, because `make` has an option of that name; rename it"
            )
        return cls

    def make(self, **kwargs: Any) -> Env:
        """Make a new environment. A keyword with the name of a field from `max_turns` on replaces
        the spec's own; all others are options of the environment.

        Raises:
            ConfigError: the class cannot be imported, or does not take these options.
        """
        return self.with_options(**kwargs).maker()()

    def maker(self) -> Callable[[], Env]:
        """Return a function that makes environments like `make`, but without looking up the class
        each time.

        Raises:
            ConfigError: the class cannot be imported. The function raises the errors of `make`.
        """
        cls = self.load()

        def make() -> Env:
            try:
                return wrapped(cls(**copied(self.kwargs)), self)
            except ArlError:  # its message is complete
                raise
            except (Exception, SystemExit) as error:  # foreign code
                raise self._refused("be made", self.kwargs, error) from error

        return make

    def with_options(self, **kwargs: Any) -> EnvSpec:
        """Return the spec whose `make()` returns the same environment as `make(**kwargs)` of this
        one.

        Raises:
            ConfigError: a limit is out of range, or an option of attempts is set while
                `max_attempts` is 1.
        """
        if not kwargs:
            return self
        ours = {name: kwargs.pop(name) for name in _OF_MAKE if name in kwargs}
        try:
            made = type(self).model_validate(
                {**dict(self), **ours, "kwargs": self.kwargs | kwargs}, strict=False
            )
        except ValidationError as error:
            raise ConfigError(
                f"env {self.id}: {'; '.join(key_faults(type(self), error))}"
            ) from error
        idle = [name for name in _OF_ATTEMPTS if name in ours]
        if idle and made.max_attempts == 1:
            raise ConfigError(
                f"env {self.id}: {', '.join(idle)} has no effect with max_attempts = 1; set "
                "max_attempts above 1, too"
            )
        return made

    def task_source(self, split: Split, *, seed: int, **kwargs: Any) -> TaskSource:
        """Return the tasks of the environment's `split`.

        Raises:
            ConfigError: the class cannot be imported, or does not take these options.
        """
        spec = self.with_options(**kwargs)
        cls = spec.load()
        try:
            return cls.task_source(split, seed=seed, **copied(spec.kwargs))
        except ArlError:
            raise
        except (Exception, SystemExit) as error:
            raise self._refused("give its tasks", spec.kwargs, error) from error

    async def read_tasks(self, split: Split, *, seed: int) -> TaskSource:
        """Return `task_source`; the event loop continues while a large set is read, and a log line
        names the set. Errors are those of `task_source`."""
        loop = asyncio.get_running_loop()
        say = loop.call_later(SAY_AFTER_S, _log.info, "%s: reading its %s tasks", self.id, split)
        try:
            return await asyncio.to_thread(self.task_source, split, seed=seed)
        finally:
            say.cancel()


def wrapped(made: Env | SyncEnv, spec: EnvSpec) -> Env:
    """Return `made` inside the wrappers of `spec` and those of every environment."""
    env = to_async(made) if isinstance(made, SyncEnv) else made
    env.spec = spec
    limit_s = env.step_timeout_s if spec.step_timeout_s is None else spec.step_timeout_s
    env = Timeout(PassiveChecker(env), limit_s)
    attempts = None
    if spec.max_attempts > 1:
        env = attempts = Attempts(
            env, spec.max_attempts, spec.feedback, spec.retry_discount, spec.success_reward
        )
    for wrapper in spec.wrappers:
        env = wrapper.wrap(env)
    if spec.wrappers:  # the results of the user's wrappers must keep the contract, too
        env = PassiveChecker(env)
    max_turns = env.max_turns if spec.max_turns is None else spec.max_turns
    if attempts is not None:
        attempts.turns = max_turns
    return OrderEnforcing(env if max_turns is None else TurnLimit(env, max_turns))


_OF_ATTEMPTS = ("feedback", "retry_discount", "success_reward")
_OF_MAKE = ("max_turns", "step_timeout_s", "wrappers", "max_attempts", *_OF_ATTEMPTS)


@lru_cache(maxsize=256)  # the call takes longer than making an environment
def _taken(cls: type) -> tuple[str, ...]:
    """Return the options of `make` for which `cls` has a parameter of the same name."""
    try:
        parameters = inspect.signature(cls).parameters
    except (ValueError, TypeError):  # classes written in C have no signature
        return ()
    return tuple(name for name in _OF_MAKE if name in parameters)


def _fields(model: BaseModel) -> dict[str, Any]:
    """Return the fields by name, unconverted; each wrapper as a dict of its fields, too."""
    return {
        name: [_fields(wrapper) for wrapper in value] if name == "wrappers" else value
        for name, value in model
    }


_UNEXPECTED = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")


def _refusing(cls: type, error: BaseException) -> Callable[..., Any]:
    """Return the callable that refused a keyword: `cls`, or a class or function that it called."""
    frames = [*traceback.walk_tb(error.__traceback__)][1:]
    if (match := _UNEXPECTED.match(str(error))) and frames:
        found = frames[-1][0].f_globals.get(match[1])
        return found if callable(found) else cls
    return cls


def _near(refusing: Callable[..., Any], error: BaseException, *, also: Sequence[str]) -> str:
    """Return "; did you mean level?" if `error` names an unknown keyword similar to a known one."""
    match = _UNEXPECTED.match(str(error))
    if not match:
        return ""
    try:
        names = [*inspect.signature(refusing).parameters, *also]
    except (ValueError, TypeError):  # classes written in C have no signature
        return ""
    no_rows = f"; {match[2]}: its tasks are its own, not rows of files"
    return no_rows if match[2] in ("data", "rows") else near_match(match[2], names)


def _parameters(cls: Callable[..., Any]) -> str:
    """Return the parameters, as in `level=1, max_turns=None`; one without a default is required."""
    try:
        found = inspect.signature(cls).parameters.values()
    except (ValueError, TypeError):  # classes written in C have no signature
        return "..."
    return ", ".join(str(p.replace(annotation=p.empty)) for p in found)
