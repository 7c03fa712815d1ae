"""Names for environments, agents and sandboxes: `register`, `make`, `spec`, as in Gymnasium.

Ids are `[namespace/]name-vN`; without a version the latest is meant. `module:attr` works
everywhere an id does. Plugins of other packages are found through the entry-point groups
`agentgym_rl.envs`, `.agents` and `.sandboxes`; they are read at the first unknown id or by
`arl list`, never at import, and a broken one is a warning row, not a crash.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .agent import Agent
from .env import Env
from .errors import ArlError, ConfigError
from .sandbox import Limits, SandboxBackend
from .task import Split, TaskSource

Kind = Literal["env", "agent", "sandbox"]
_ID = re.compile(r"(?:[\w.-]+/)?[A-Za-z_][\w.-]*")
_BASES: dict[Kind, type] = {"env": Env, "agent": Agent, "sandbox": SandboxBackend}
_CALLED: dict[Kind, str] = {"env": "an env", "agent": "an agent", "sandbox": "a sandbox"}
_GROUPS: dict[Kind, str] = {"env": "envs", "agent": "agents", "sandbox": "sandboxes"}


class Spec(BaseModel):
    """How to make something of a kind; plain JSON, so it can travel between processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: Kind = "env"
    entry_point: str
    """`module:Class`; called with `kwargs` and what `make` is given."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    description: str = ""

    def load(self) -> type:
        """The class itself.

        Raises:
            ConfigError: the entry point cannot be imported or is of another kind.
        """
        target = import_object(self.entry_point)
        if not (isinstance(target, type) and issubclass(target, _BASES[self.kind])):
            raise ConfigError(
                f"{self.id}: {self.entry_point} is {target!r}, "
                f"expected a subclass of agentgym_rl.{_BASES[self.kind].__name__}"
            )
        return target

    def make(self, **kwargs: Any) -> Any:
        """A new instance.

        Raises:
            ConfigError: it cannot be imported, or does not take these options.
        """
        cls, options = self.load(), self.kwargs | kwargs
        try:
            return cls(**options)
        except ArlError:  # says already whose fault it is
            raise
        except Exception as error:  # somebody else's code
            raise self._refused("be made", options, error) from error

    def task_source(self, split: Split, *, seed: int, **kwargs: Any) -> TaskSource:
        """The tasks of an environment's `split`.

        Raises:
            ConfigError: it cannot be imported, or does not take these options.
        """
        cls, options = self.load(), self.kwargs | kwargs
        try:
            return cls.task_source(split, seed=seed, **options)
        except ArlError:
            raise
        except Exception as error:
            raise self._refused("give its tasks", options, error) from error

    def _refused(self, what: str, options: Mapping[str, Any], error: Exception) -> ConfigError:
        known = _parameters(self.load())
        takes = f"{known}, set as --{self.kind}.options.NAME=VALUE" if known else "no options"
        return ConfigError(
            f"{self.kind} {self.id} cannot {what} with options {dict(options)}: "
            f"{type(error).__name__}: {error}{_place(error)}; it takes {takes}"
        )


@dataclass(frozen=True)
class Listed:
    """A row of `arl list`: a spec, or the traceback of a plugin that failed to load."""

    id: str
    kind: Kind
    spec: Spec | None
    error: str = ""


_registered: dict[tuple[Kind, str], Spec] = {}


def register(
    id: str,
    entry_point: str,
    *,
    kind: Kind = "env",
    kwargs: Mapping[str, Any] | None = None,
    description: str = "",
    force: bool = False,
) -> Spec:
    """Give `entry_point` ("module:Class") a name.

    Raises:
        ConfigError: the id is malformed, or taken and `force` is False.
    """
    if not _ID.fullmatch(id):
        raise ConfigError(f"bad id {id!r}: expected [namespace/]name or [namespace/]name-vN")
    if (kind, id) in _registered and not force:
        raise ConfigError(f"{kind} {id!r} is registered already; pass force=True to replace it")
    made = Spec(
        id=id,
        kind=kind,
        entry_point=entry_point,
        kwargs=dict(kwargs or {}),
        description=description,
    )
    _registered[kind, id] = made
    return made


def spec(id: str, *, kind: Kind = "env") -> Spec:
    """The spec behind an id or a `module:attr`.

    Raises:
        ConfigError: nothing has that id; the message names the nearest ones.
    """
    if ":" in id:
        found = import_object(id)
        found = found if isinstance(found, Spec) else Spec(id=id, kind=kind, entry_point=id)
        return _of_kind(found, kind)
    known = {row.id: row for row in listing(kind)}
    wanted = _latest(id, known)
    if wanted is None:
        near = difflib.get_close_matches(id, known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"
        raise ConfigError(f"no {kind} is called {id!r}; {hint} (`arl list` shows all)")
    row = known[wanted]
    if row.spec is None:
        raise ConfigError(f"the plugin of {kind} {wanted!r} is broken:\n{row.error}")
    return row.spec


def make(id: str, **kwargs: Any) -> Env:
    """A new environment."""
    return spec(id, kind="env").make(**kwargs)


def make_agent(id: str, **kwargs: Any) -> Agent:
    """A new agent."""
    return spec(id, kind="agent").make(**kwargs)


def make_sandbox(id: str, **kwargs: Any) -> SandboxBackend:
    """A new sandbox backend, which `async with` starts.

    `limits` may be a mapping, as a configuration file has it (see `sandbox.Limits`).

    Raises:
        ConfigError: it cannot be imported, or does not take these options.
    """
    if isinstance(limits := kwargs.get("limits"), Mapping):
        try:
            kwargs["limits"] = Limits(**limits)
        except (TypeError, ValueError) as error:
            known = ", ".join(field.name for field in dataclasses.fields(Limits))
            raise ConfigError(f"sandbox {id}, limits: {error}; there are {known}") from error
    return spec(id, kind="sandbox").make(**kwargs)


def listing(kind: Kind) -> list[Listed]:
    """Everything of a kind: registered here first, then plugins; broken ones carry an error."""
    rows = {id: Listed(id, kind, found) for (k, id), found in _registered.items() if k == kind}
    for point in entry_points(group=f"agentgym_rl.{_GROUPS[kind]}"):
        if point.name not in rows:
            rows[point.name] = _read_plugin(point, kind)
    return [rows[id] for id in sorted(rows)]


def _place(error: Exception) -> str:
    """File and line of the foreign code that raised, if it ran at all."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first one is the call here
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _parameters(cls: type) -> str:
    """`level=1, max_turns=None`; those without a default are required."""
    try:
        found = inspect.signature(cls).parameters.values()
    except (ValueError, TypeError):  # classes written in C do not tell
        return "..."
    return ", ".join(str(p.replace(annotation=p.empty)) for p in found)


def _read_plugin(point: EntryPoint, kind: Kind) -> Listed:
    try:
        found = point.load()
        if not isinstance(found, Spec):
            found = Spec(id=point.name, kind=kind, entry_point=point.value)
            about = (found.load().__doc__ or "").strip().partition("\n")[0]
            found = found.model_copy(update={"description": about})
        return Listed(point.name, kind, _of_kind(found, kind))
    except (Exception, SystemExit):  # a broken plugin of somebody else must not break `arl list`
        return Listed(point.name, kind, None, traceback.format_exc(limit=-3))


def _of_kind(found: Spec, kind: Kind) -> Spec:
    if found.kind != kind:
        raise ConfigError(f"{found.id!r} is {_CALLED[found.kind]}, not {_CALLED[kind]}")
    return found


def _latest(id: str, known: Mapping[str, object]) -> str | None:
    if id in known:
        return id
    versions = [name for name in known if re.fullmatch(re.escape(id) + r"-v\d+", name)]
    return max(versions, key=lambda name: int(name.rpartition("-v")[2]), default=None)


def import_object(path: str) -> Any:
    """What `module:attr` names; raises ConfigError when it cannot be imported."""
    module, _, attribute = path.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for name in attribute.split("."):
            target = getattr(target, name)
    except Exception as error:  # importing runs foreign code: anything can come out
        raise ConfigError(
            f"cannot import {path!r} (module:attr): {type(error).__name__}: {error}"
        ) from error
    return target
