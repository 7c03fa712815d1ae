"""The sources of tasks: a generator's name, a task folder, or a folder of task folders."""

from __future__ import annotations

import importlib
import logging
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from agentgym_rl import ConfigError, EnvError, Task, TaskSource
from agentgym_rl.core import Split, derived_seed, near_names
from agentgym_rl.runtime import Repeated
from arl_envs.splits import split_of

from .config import read_config
from .folder import MAX_TASKS, read_folder, task_folders
from .options import Options
from .task import HarborTask, digest_of

GENERATORS = ("bugs", "chores")
"""The packages beside this module with `task_source` and `make`."""

LOG_EVERY_S = 2.0
log = logging.getLogger(__name__)
_warnings = Repeated(log)


def task_source(split: Split, *, seed: int, options: Options) -> TaskSource:
    """Return the tasks that `options.source` names.

    Raises:
        ConfigError: there is no such generator or folder, or none of its tasks can be played.
    """
    if split not in get_args(Split):
        raise ConfigError(f"no split is called {split!r}; allowed: train, eval")
    if options.exclude and options.source in GENERATORS:
        raise ConfigError(f"exclude: only for folders of tasks, not for {options.source}")
    if options.source in GENERATORS:
        level = 1 if options.level is None else options.level
        return _generator(options.source).task_source(split, seed=seed, level=level)
    if options.level is not None:
        raise ConfigError(f"level: only for {' and '.join(GENERATORS)}, not for folders of tasks")
    path = Path(options.source).expanduser()
    if not path.exists():
        raise ConfigError(_unknown(options.source))
    if path.is_file():
        raise ConfigError(f"{path} is a file; expected its folder: --env harbor:{path.parent}")
    return FolderTasks(path, split, options)


def make_task(task: Task) -> HarborTask:
    """Return the contents of a task of `task_source`.

    Raises:
        EnvError: the task is not of this environment, or its folder has changed since.
    """
    kind = task.data.get("kind")
    if kind in GENERATORS:
        return _generator(kind).make(task)
    if kind != "folder" or not isinstance(task.data.get("path"), str):
        raise EnvError(
            f"task {task.id} is not a task of the harbor environment: {task.data!r:.200}"
        )
    try:
        found = _read(task.data["path"], task.data.get("name", ""))
    except ConfigError as error:
        raise EnvError(str(error)) from error
    if found.digest != task.data.get("digest"):
        raise EnvError(
            f"task {task.id}: {task.data['path']} has changed since the task was listed: its "
            "episodes would not be comparable; start anew"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    path: str
    digest: str


class FolderTasks(TaskSource):
    """The playable tasks of one split of a folder; the others are named in a warning.

    Raises:
        ConfigError: no task can be played; or the folder is a single task, which cannot.
    """

    def __init__(self, path: Path, split: Split, options: Options) -> None:
        self._split: Split = split
        self._path = path.resolve()
        folders = task_folders(self._path)
        alone = folders == [self._path]
        entries: list[_Entry] = []
        self.left_out: list[str] = []
        """The reason for each folder that cannot be played."""
        excluded = _Excluded(options.exclude)
        logged_s = time.monotonic()
        for number, folder in enumerate(folders):
            if time.monotonic() - logged_s > LOG_EVERY_S:
                logged_s = time.monotonic()
                log.info("%s: %d of %d task folders are read", path, number, len(folders))
            name = folder.name if alone else folder.relative_to(self._path).as_posix()
            if excluded.has(name):
                continue
            try:
                if not name.isprintable():
                    raise ConfigError(f"task {name!r}: the name of its folder is no line of text")
                digest = _digest_once(str(folder), name, _state(folder), options.offline)
            except ConfigError as error:
                if alone:
                    raise
                self.left_out.append(str(error))
                continue
            entries.append(_Entry(name, str(folder), digest))
        if unused := excluded.unused():
            raise ConfigError(f"exclude: no task of {path} is called {unused}")
        for reason in self.left_out:
            _warnings.warn("left out: %s", reason, why=reason)
        if not entries:
            first = f"; the first: {self.left_out[0]}" if self.left_out else ": all are excluded"
            raise ConfigError(f"{path}: none of its {len(folders)} tasks can be played{first}")
        both = options.split_by == "all" or len(entries) == 1
        self._entries = [each for each in entries if both or split_of(each.name) == split]
        if not self._entries:
            raise ConfigError(
                f"{path}: by the hash of their names, none of its {len(entries)} tasks is in the "
                f"{split} split: --env.options.split_by=all plays all of them in both"
            )

    def __getitem__(self, index: int, /) -> Task:
        if not 0 <= index < len(self._entries):
            raise IndexError(f"task index {index}: there are {len(self._entries)} tasks")
        entry = self._entries[index]
        data = {"kind": "folder", "name": entry.name, "path": entry.path, "digest": entry.digest}
        seed = derived_seed(0, entry.name)
        return Task(id=f"harbor-{entry.name}", seed=seed, data=data, split=self._split)

    def __len__(self) -> int:
        return len(self._entries)

    def describe(self) -> dict[str, Any]:
        content = digest_of(each.digest for each in self._entries)
        return {"tasks": len(self), "left_out": len(self.left_out), "content": content}


class _Excluded:
    """The patterns of an option, and which of them have matched."""

    def __init__(self, text: str) -> None:
        self._patterns = [each.strip() for each in text.split(",") if each.strip()]
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        found = {each for each in self._patterns if fnmatchcase(name, each)}
        self._used |= found
        return bool(found)

    def unused(self) -> str:
        return ", ".join(each for each in self._patterns if each not in self._used)


def _read(path: str, name: str) -> HarborTask:
    """Return the task of a folder, which is read again only if a file has changed."""
    return _read_once(path, name, _state(Path(path)))


@lru_cache(maxsize=256)
def _read_once(path: str, name: str, state: str) -> HarborTask:
    return read_folder(Path(path), name=name)


@lru_cache(maxsize=MAX_TASKS)
def _digest_once(path: str, name: str, state: str, offline: bool) -> str:
    """Return the digest of a task that can be played: a run lists the same folder several times.

    Raises:
        ConfigError: it cannot be played.
    """
    found = read_folder(Path(path), name=name)
    read_config(found.config, name=name, offline=offline)
    return found.digest


def _state(path: Path) -> str:
    """Return the digest of the names, times and sizes of a task's files."""
    tops = ("task.toml", "instruction.md", "environment", "tests", "solution")
    found: list[str] = []
    for top in tops:
        below = sorted((path / top).rglob("*")) if (path / top).is_dir() else []
        for each in (path / top, *below):
            try:
                stat = each.lstat()
            except OSError:
                continue  # a missing part is reported when it is read
            found += [str(each.relative_to(path)), f"{stat.st_mtime_ns} {stat.st_size}"]
    return digest_of(each.encode("utf-8", "surrogateescape").hex() for each in found)


def _generator(name: str) -> Any:
    return importlib.import_module(f"arl_envs.harbor.{name}")


def _unknown(source: str) -> str:
    here = Path(source).expanduser()
    try:
        beside = [each.name for each in here.parent.iterdir() if each.is_dir()]
    except OSError:  # the folder that should hold it is missing, too
        beside = []
    near = [str(here.with_name(name)) for name in near_names(here.name, beside, most=3)]
    near = [*near_names(source, GENERATORS, most=3), *near]
    new = source if source.isidentifier() else "NAME"
    meant = f"; did you mean {' or '.join(near)}?" if near else "."
    return (
        f"{source!r} is no generator ({', '.join(GENERATORS)}) and no folder{meant} A task or data "
        "set of Harbor's registry is not downloaded: get its repository (`git clone URL tasks`), "
        f"and name the folder, as in --env harbor:tasks. `arl new env --harbor {new}` writes a task"
    )
