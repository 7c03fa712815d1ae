"""The members of a registry that installed packages add by entry points: commands, engines, and so
on. A group's members are found by name; a member is imported when it is used, and not before.

Entry points: https://packaging.python.org/en/latest/specifications/entry-points/.
"""

from __future__ import annotations

import difflib
import logging
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, TypeVar, overload

from .errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

PREFIX = "agentgym_rl."
"""The beginning of the name of every group."""

_registered: dict[tuple[str, str], Any] = {}
_left_out: set[tuple[str, str]] = set()
"""The members that could not be imported, and were reported."""


def register_extension(group: str, name: str, member: object) -> None:
    """Add a member in this process alone, as a notebook does; the processes of a run do not get it.

    Raises:
        ConfigError: the group has another member of that name.
    """
    if (group, name) in _registered or name in entry_points_of(group):
        raise ConfigError(f"{group} has a member {name!r} already")
    _registered[group, name] = member


def extension_names(group: str) -> list[str]:
    """Return the sorted names of the members of a group, without importing any.

    A package of our own that was left out of the installation has none.
    """
    here = {name for of, name in _registered if of == group}
    return sorted(here | entry_points_of(group).keys())


@overload
def load_extension(group: str, name: str) -> Any: ...
@overload
def load_extension(group: str, name: str, *, of: type[T]) -> T: ...
def load_extension(group: str, name: str, *, of: type[Any] = object) -> Any:
    """Import and return the member of a group, an instance of `of`.

    Raises:
        ConfigError: there is none of that name (the message has the nearest ones), it cannot be
            imported, or it is something else.
    """
    found = _found(group, name)
    if not isinstance(found, of):
        raise ConfigError(
            f"{group}: {name!r} is {found!r}; expected an instance of {of.__module__}.{of.__name__}"
        )
    return found


def load_extensions(group: str, *, of: type[T]) -> dict[str, T]:
    """Import and return all members of a group by name, without those that cannot be loaded: a
    broken package is no obstacle to the use of others."""
    found: dict[str, T] = {}
    for name in extension_names(group):
        try:
            found[name] = load_extension(group, name, of=of)
        except ConfigError as error:
            if (group, name) not in _left_out:
                log.warning("left out: %s", error)
            _left_out.add((group, name))
    return found


def _found(group: str, name: str) -> Any:
    if (group, name) in _registered:
        return _registered[group, name]
    found = entry_points_of(group).get(name)
    if found is None:
        forget_entry_points()  # a package may have been installed since
        found = entry_points_of(group).get(name)
    if found is None:
        known = extension_names(group)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known)}"
        raise ConfigError(f"{group} has no {name!r}; {hint}")
    try:
        return found.load()
    except (Exception, SystemExit) as error:  # foreign code runs: it can raise anything
        raise ConfigError(
            f"{group}: {name!r} ({found.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error


def entry_points_of(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, by name."""
    return _entry_points(group, tuple(sys.path))


def forget_entry_points() -> None:
    """Look at the installed packages again at the next use."""
    _entry_points.cache_clear()


@lru_cache(maxsize=32)
def _entry_points(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points along `path`, which is `sys.path`: slow to find."""
    found = reversed(tuple(entry_points(group=PREFIX + group)))  # the first of a name wins
    return {point.name: point for point in found if not _is_left_out(point)}


def _is_left_out(point: EntryPoint) -> bool:
    """Return whether an entry point is of a package of our own that was not installed along."""
    is_ours = point.dist is not None and point.dist.name == "agentgym-rl"
    return is_ours and find_spec(point.module.partition(".")[0]) is None
