"""The registry of environments, agents and sandboxes: `register`, `make`, `spec`, as in Gymnasium.

Ids are `[namespace/]name-vN`; without a version the latest is meant. `module:attr` works
everywhere an id does. Plugins of other packages are found through the entry-point groups
`agentgym_rl.envs`, `.agents` and `.sandboxes`; a plugin is imported when its id is requested, all
by `arl list`, none at import, and a broken plugin is a warning row, not a crash.
"""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Literal, overload

from pydantic import ValidationError

from agentgym_rl.core import (
    ConfigError,
    entry_points_of,
    hint,
    is_mapping,
    key_faults,
    near_of,
    path_of,
)
from agentgym_rl.core.extensions import forget_entry_points
from agentgym_rl.runtime import import_object

from .agent import Agent
from .env import Env
from .sandbox import SandboxBackend
from .sandbox_records import Limits
from .specs import EnvSpec, Kind, Spec
from .sync_env import SyncEnv

_ID = re.compile(r"(?:[\w.-]+/)?[A-Za-z_][\w.-]*")
_CALLED: dict[Kind, str] = {"env": "an env", "agent": "an agent", "sandbox": "a sandbox"}
_GROUPS: dict[Kind, str] = {"env": "envs", "agent": "agents", "sandbox": "sandboxes"}


@dataclass(frozen=True)
class Listed:
    """A row of `arl list`: a spec, or the traceback of a plugin that failed to load."""

    id: str
    kind: Kind
    spec: Spec | None
    error: str = ""


_registered: dict[tuple[Kind, str], Spec] = {}
_listeners: list[Callable[[str], None]] = []


def register(
    id: str,
    entry_point: str | type[Env | SyncEnv | Agent | SandboxBackend],
    *,
    kind: Kind = "env",
    kwargs: Mapping[str, Any] | None = None,
    description: str = "",
    force: bool = False,
    **limits: Any,
) -> Spec:
    """Register `entry_point`, a class or its path "module:Class", as `id`.

    `limits` of an environment are the other fields of `EnvSpec`: max_turns, step_timeout_s,
    wrappers, argument, max_attempts and the options of attempts.

    Raises:
        ConfigError: the id is malformed, or taken and `force` is False; the class is defined inside
            a function; `limits` has an unknown name, or a value out of range.
    """
    if not _ID.fullmatch(id):
        raise ConfigError(f"bad id {id!r}: expected [namespace/]name or [namespace/]name-vN")
    if (kind, id) in _registered and not force:
        raise ConfigError(f"{kind} {id!r} is registered already; pass force=True to replace it")
    try:
        made = _new(kind)(
            id=id,
            kind=kind,
            entry_point=entry_point if isinstance(entry_point, str) else path_of(entry_point),
            kwargs=dict(kwargs or {}),
            description=description,
            **limits,
        )
    except ValidationError as error:
        said = "; ".join(key_faults(_new(kind), error))
        raise ConfigError(f"{kind} {id!r} cannot be registered: {said}") from error
    _registered[kind, id] = made
    if kind == "env":
        for listener in _listeners:
            listener(id)
    return made


def on_new_env(listener: Callable[[str], None]) -> None:
    """Call `listener` with the id of each environment that is registered from now on."""
    _listeners.append(listener)


@overload
def spec(id: str, *, kind: Literal["env"] = "env") -> EnvSpec: ...
@overload
def spec(id: str, *, kind: Kind) -> Spec: ...
def spec(id: str, *, kind: Kind = "env") -> Spec:
    """Return the spec of an id, a `module:attr`, or a `name:value` (see `Spec.argument`).

    Raises:
        ConfigError: nothing has that id; the message has near matches.
    """
    if ":" in id:
        try:
            return _with_argument(id, kind) or _at(id, kind)
        except ConfigError as error:
            name, _, value = id.partition(":")
            if _row(name, kind) is None:
                raise
            option = value if "=" in value else "NAME=VALUE"
            said = f"{kind} {name!r} takes options as --{kind} {name} --{kind}.options.{option}"
            raise ConfigError(said if "=" in value else f"{said}\n{error}") from error
    row = _row(id, kind)
    if row is None:
        forget_entry_points()  # a plugin may have been installed since
        row = _row(id, kind)
    if row is None:
        said = hint(kind, id) or near_of(id, sorted(names(kind)), most=3, others="known")
        raise ConfigError(f"no {kind} is called {id!r}; {said} (`arl list` shows all)")
    if row.spec is None:
        raise ConfigError(f"the plugin of {kind} {row.id!r} is broken:\n{row.error}")
    return row.spec


def make(id: str | EnvSpec | type[Env | SyncEnv], **kwargs: Any) -> Env:
    """Make a new environment from an id, a spec or a class, inside the wrappers shown in
    `agentgym_rl.gym.wrappers`.

    `max_turns`, `step_timeout_s`, `wrappers`, `max_attempts` and the other fields of `EnvSpec` set
    those fields; all other keywords are options of the environment, which gets copies of lists and
    tables. `make(env.spec)` makes another environment of the same spec.

    Raises:
        ConfigError: nothing has that id, or the environment does not take these options.
    """
    found = id if isinstance(id, EnvSpec) else spec(id if isinstance(id, str) else path_of(id))
    return found.make(**kwargs)


def pprint_registry() -> None:
    """Print the ids of all environments, a line each, as Gymnasium's function does."""
    for row in listing("env"):
        print(f"{row.id:<24} {row.spec.description if row.spec else 'BROKEN'}")


def make_agent(id: str | type[Agent], **kwargs: Any) -> Agent:
    """Make a new agent from an id or a class."""
    return spec(id if isinstance(id, str) else path_of(id), kind="agent").make(**kwargs)


def make_sandbox(id: str, **kwargs: Any) -> SandboxBackend:
    """Make a new sandbox backend, which `async with` starts.

    `limits` may be a mapping, as in a configuration file (see `sandbox.Limits`).

    Raises:
        ConfigError: the backend cannot be imported, or does not take these options.
    """
    if is_mapping(limits := kwargs.get("limits")):
        try:
            kwargs["limits"] = Limits(**limits)
        except (TypeError, ValueError) as error:
            known = ", ".join(field.name for field in dataclasses.fields(Limits))
            raise ConfigError(f"sandbox {id}, limits: {error}; there are {known}") from error
    return spec(id, kind="sandbox").make(**kwargs)


def listing(kind: Kind) -> list[Listed]:
    """Return all specs of a kind, registered or of plugins, sorted by id; the row of a broken
    plugin has its error."""
    forget_entry_points()
    rows = [_row(id, kind) for id in sorted(names(kind))]
    return [row for row in rows if row is not None]


def _row(id: str, kind: Kind) -> Listed | None:
    """Return the row of `id`, if there is one; only the plugin of this id is imported."""
    wanted = id if (kind, id) in _registered else _latest(id, names(kind))
    if wanted is None:
        return None
    if (kind, wanted) in _registered:
        return Listed(wanted, kind, _registered[kind, wanted])
    return _read_plugin(entry_points_of(_GROUPS[kind])[wanted], kind)


def names(kind: Kind) -> set[str]:
    """Return all ids of a kind, registered here or of plugins, without importing any."""
    here = {id for k, id in _registered if k == kind}
    return here | entry_points_of(_GROUPS[kind]).keys()


def _read_plugin(point: EntryPoint, kind: Kind) -> Listed:
    try:
        found = point.load()
        if not isinstance(found, Spec):
            found = _new(kind)(id=point.name, kind=kind, entry_point=point.value)
            about = (found.load().__doc__ or "").strip().partition("\n")[0]
            found = found.model_copy(update={"description": about})
        return Listed(point.name, kind, _of_kind(found, kind))
    except (Exception, SystemExit):  # a broken foreign plugin must not break `arl list`
        return Listed(point.name, kind, None, traceback.format_exc(limit=-3))


def _new(kind: Kind) -> type[Spec]:
    return EnvSpec if kind == "env" else Spec


def _at(path: str, kind: Kind) -> Spec:
    found = import_object(path)
    if not isinstance(found, Spec):
        found = _new(kind)(id=path, kind=kind, entry_point=path)
    return _of_kind(found, kind)


def _with_argument(id: str, kind: Kind) -> Spec | None:
    """Return the spec of `name:value`; None if no spec of that name takes a value."""
    name, _, value = id.partition(":")
    row = _row(name, kind)
    found = row.spec if row else None
    if found is None or not found.argument:
        return None
    return found.model_copy(update={"id": id, "kwargs": found.kwargs | {found.argument: value}})


def _of_kind(found: Spec, kind: Kind) -> Spec:
    if found.kind != kind:
        raise ConfigError(f"{found.id!r} is {_CALLED[found.kind]}, not {_CALLED[kind]}")
    return found


def _latest(id: str, known: Collection[str]) -> str | None:
    if id in known:
        return id
    versions = [name for name in known if re.fullmatch(re.escape(id) + r"-v\d+", name)]
    return max(versions, key=lambda name: int(name.rpartition("-v")[2]), default=None)
