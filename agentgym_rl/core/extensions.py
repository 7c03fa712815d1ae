"""The members of a registry that installed packages add by entry points: commands, engines, and so
on. A group's members are found by name; a member is imported when it is used, and not before.

Entry points: https://packaging.python.org/en/latest/specifications/entry-points/.
"""

from __future__ import annotations

import ast
import logging
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, overload

from .errors import ConfigError, near_of

log = logging.getLogger(__name__)

T = TypeVar("T")

PREFIX = "agentgym_rl."
"""The beginning of the name of every group."""

_registered: dict[tuple[str, str], Any] = {}
_left_out: set[tuple[str, str]] = set()
"""The members that could not be imported, and have been reported."""


def register_extension(group: str, name: str, member: object) -> None:
    """Add a member in this process only, for notebooks; the processes of a run do not get it.

    Raises:
        ConfigError: the group has another member of that name.
    """
    if (group, name) in _registered or name in entry_points_of(group):
        raise ConfigError(f"{group} has a member {name!r} already")
    _registered[group, name] = member


def extension_names(group: str) -> list[str]:
    """Return the sorted names of the members of a group, without importing any.

    A first-party package that is not installed has no members.
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
        ConfigError: no member has that name (the message has near matches), it cannot be imported,
            or it is not an instance of `of`.
    """
    found = _found(group, name)
    if not isinstance(found, of):
        raise ConfigError(
            f"{group}: {name!r} is {found!r}; expected an instance of {of.__module__}.{of.__name__}"
        )
    return found


def load_extensions(group: str, *, of: type[T]) -> dict[str, T]:
    """Import and return all members of a group by name, without those that cannot be loaded: a
    broken package does not prevent the use of others."""
    found: dict[str, T] = {}
    for name in extension_names(group):
        try:
            found[name] = load_extension(group, name, of=of)
        except ConfigError as error:
            if (group, name) not in _left_out:
                log.warning("left out: %s", error)
            _left_out.add((group, name))
    return found


def only_one(group: str, takers: Mapping[str, T], *, would: str) -> T | None:
    """Return the only one of `takers`, the members of a group that apply to a run; None if there is
    none. `would` describes in the error what each of them does.

    Raises:
        ConfigError: there are several.
    """
    if len(takers) > 1:
        raise ConfigError(
            f"{' and '.join(takers)} ({PREFIX}{group}) {would}, and one alone can: leave out the "
            "keys of the others"
        )
    return next(iter(takers.values()), None)


def added_class(group: str, base: type[T], *, would: str) -> Callable[..., T] | None:
    """Return the class, a subclass of `base`, that another package adds to a group, or else the
    first-party one; None if there is none. `would` describes in the error what a class does.

    Raises:
        ConfigError: several other packages add one, or it is not such a class.
    """
    points, names = entry_points_of(group), extension_names(group)
    added = [name for name in names if name not in points or not is_ours(points[name])]
    found = {name: load_extension(group, name, of=type) for name in added or names}
    made = only_one(group, found, would=would)
    if made is not None and not issubclass(made, base):
        raise ConfigError(
            f"{PREFIX}{group}: {made!r}; expected a subclass of {base.__module__}.{base.__name__}"
        )
    return made


def not_installed(group: str, key: str, does: str) -> ConfigError:
    """Return the error of a `key` on which no member of a group acts; `does` describes in the
    message what such a member does."""
    return ConfigError(
        f"{key}: no installed package {does} (the group of entry points {PREFIX}{group}); install "
        "it, or leave the key out"
    )


def hint(kind: str, name: str, given: Mapping[str, Any] | None = None) -> str:
    """Return the sentence of an installed package (the group `agentgym_rl.hints`) on an unknown
    name of a kind, "flag" or "word" (`given`: the other flags), "env", "agent", "sandbox",
    "preset", "model" or "download" (`given`: its error and revision); "" if none has one."""
    hints: Iterator[Any] = iter(load_extensions("hints", of=object).values())
    found: Iterator[str] = (hint_of(kind, name, given or {}) for hint_of in hints)
    return next((sentence for sentence in found if sentence), "")


def _found(group: str, name: str) -> Any:
    if (group, name) in _registered:
        return _registered[group, name]
    found = entry_points_of(group).get(name)
    if found is None:
        forget_entry_points()  # a package may have been installed since
        found = entry_points_of(group).get(name)
    if found is None:
        why = missing_member(group, name, f"{name!r} is a member of {PREFIX}{group}") or (
            f"{group} has no {name!r}: no installed package adds it (the group of entry points "
            f"{PREFIX}{group})"
        )
        near = near_of(name, extension_names(group), most=3, others="known")
        raise ConfigError(f"{why}; {near}")
    try:
        return found.load()
    except (Exception, SystemExit) as error:  # foreign code runs: it can raise anything
        raise ConfigError(
            f"{group}: {name!r} ({found.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error


def entry_points_of(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, by name; first-party names take precedence over those of
    other packages."""
    return _entry_points(group, tuple(sys.path))[0]


def shadowed(group: str) -> list[tuple[EntryPoint, EntryPoint]]:
    """Return the entry points of a group that are ignored because their names are taken, each with
    the one that is used."""
    return _entry_points(group, tuple(sys.path))[1]


def absent(group: str) -> list[EntryPoint]:
    """Return the first-party entry points of a group whose packages are not installed."""
    return _entry_points(group, tuple(sys.path))[2]


def absent_members(group: str) -> str:
    """Return a sentence with the first-party members of a group that are not installed; "" if all
    are."""
    named = ", ".join(f"{one.name} ({one.module.partition('.')[0]})" for one in absent(group))
    return f" Not installed, with the package of each: {named}." if named else ""


def missing_member(group: str, name: str, said: str) -> str:
    """Return why a registry lacks a member of ours, if its package was left out; `said` names what
    is missing."""
    point = next((it for it in absent(group) if it.name == name), None)
    if point is None:
        return ""
    package = point.module.partition(".")[0]
    return (
        f"{said} of the extension {package}, which is not installed: install agentgym-rl with its "
        f"extensions (the folder extensions/{package}), or leave it out"
    )


def is_function_path(path: str) -> bool:
    """Return whether a text has the form `module:function`."""
    module, colon, function = path.partition(":")
    return bool(colon) and function.isidentifier() and all(map(str.isidentifier, module.split(".")))


def path_of(target: object) -> str:
    """Return the path `module:name` by which a run, its processes and a resumed run import a class
    or function. One of the script that runs has the name of the script's module, if that can be
    imported again.

    Raises:
        ConfigError: it has none, because it is a lambda or defined inside a function.
    """
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    found: Any = sys.modules.get(module or "")
    for part in (name or "").split("."):
        found = getattr(found, part, None)
    if found is not target or found is None:
        code = getattr(target, "__code__", None)
        place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        raise ConfigError(
            f"{name or repr(target)}{place} cannot be imported by its name, as the processes of a "
            "run and --resume do; expected a class or function at the top of a module, or of the "
            "script or notebook that runs: define it there with a name"
        )
    return f"{name_of_main() if module == '__main__' else module}:{name}"


def name_of_main() -> str:
    """Return the name by which other processes import the script that runs; "__main__" if none can:
    it is a notebook, or would run once more since no `if __name__ == "__main__":` guards it."""
    main = sys.modules["__main__"]
    file, spec = str(getattr(main, "__file__", None) or ""), getattr(main, "__spec__", None)
    name = spec.name if spec else Path(file).stem
    if sys.modules.get(name) is main:
        return name
    try:
        found = find_spec(name) if file and name else None
        if found is None or not found.origin or not Path(found.origin).samefile(file):
            return "__main__"
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (ImportError, OSError, SyntaxError, ValueError):
        return "__main__"
    tests = [ast.dump(node.test) for node in tree.body if isinstance(node, ast.If)]
    if not any("'__name__'" in test and "'__main__'" in test for test in tests):
        return "__main__"
    sys.modules.setdefault(name, main)  # the same objects in this process
    return name


def only_here(path: str, who: str, *, instead: str = "") -> str:
    """Return why `who`, another process, cannot import an object of this program, with the remedy,
    or `instead` of it; "" for a path that names a module."""
    module, _, name = path.rpartition(":")
    if module.rpartition(":")[2] != "__main__":  # also reward:__main__:score
        return ""
    return (
        f"{who} cannot import {name}, which stands in a notebook or in a script without `if "
        f"__name__ == '__main__':`. Put {name} into a file beside it, such as own.py, and pass "
        f"it from there: from own import {name.partition('.')[0]}{instead and f'; or {instead}'}"
    )


def forget_entry_points() -> None:
    """Clear the cache, so that the next use looks for installed packages again."""
    _entry_points.cache_clear()
    _installed.cache_clear()


_Pairs = list[tuple[EntryPoint, EntryPoint]]


@lru_cache(maxsize=32)
def _entry_points(
    group: str, path: tuple[str, ...]
) -> tuple[dict[str, EntryPoint], _Pairs, list[EntryPoint]]:
    """Return the entry points along `path`, by name, where first-party ones take precedence, then
    packages earlier in the path; those that are ignored because their name is taken; and
    first-party ones that are not installed."""
    found: dict[str, EntryPoint] = {}
    left_out: _Pairs = []
    missing: list[EntryPoint] = []
    installed: list[EntryPoint] = list(_installed(path).select(group=PREFIX + group))
    ours = [point for point in installed if is_ours(point)] or list(_of_checkout(group))
    for point in (*ours, *(point for point in installed if not is_ours(point))):
        if is_ours(point) and find_spec(point.module.partition(".")[0]) is None:
            missing.append(point)  # a first-party package that is not installed
            continue
        if point.name in found:
            left_out.append((point, found[point.name]))
        found.setdefault(point.name, point)
    return found, left_out, missing


@lru_cache(maxsize=8)
def _installed(path: tuple[str, ...]) -> Any:
    """Return the entry points of all packages along `path`, which is `sys.path`: slow to find."""
    return entry_points()


def _of_checkout(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of a source checkout that is on PYTHONPATH without being installed, or
    was installed before the group existed."""
    file = Path(__file__).parents[2] / "pyproject.toml"
    if file.exists():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        for name, value in project["entry-points"].get(PREFIX + group, {}).items():
            yield EntryPoint(name, value, PREFIX + group)


def is_ours(point: EntryPoint) -> bool:
    """Return whether an entry point belongs to this distribution, including its extensions."""
    return point.dist is None or _name(point.dist) == "agentgym-rl"


@lru_cache(maxsize=256)
def _name(dist: Distribution) -> str:
    """Return the name of a distribution: slow to read."""
    return dist.name
