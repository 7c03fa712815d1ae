"""A task folder, read as untrusted data: no link leads out of it, and no file or tree is too
large."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentgym_rl import ConfigError

from .task import HarborTask

MAX_FILE_BYTES, MAX_TOTAL_BYTES = 32 << 20, 128 << 20
MAX_FILES, MAX_DEPTH = 8_000, 32
MAX_TEXT_BYTES = 1 << 20
"""The size limit of task.toml and instruction.md."""
MAX_TASKS = 100_000
"""The most tasks of a dataset folder."""
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


def read_folder(path: Path, *, name: str = "") -> HarborTask:
    """Return the task of a folder; its name is that of task.toml, `name`, or the folder's.

    Raises:
        ConfigError: the folder is no task that can be played; the message names it and the file.
    """
    shown = name or path.name
    try:
        config = tomllib.loads(_text(path / "task.toml"))
        instruction = _text(path / "instruction.md")
        if (path / "trajectory.json").exists():
            raise ValueError("trajectory.json: agents get no conversation of an earlier agent")
        parts = {
            part: dict(_files(path / part, root=path.resolve()))
            for part in ("environment", "tests", "solution")
        }
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"task {shown} ({path}): {_described(error)}") from error
    task = HarborTask(
        name=_package_name(config) or shown,
        instruction=instruction,
        config=config,
        environment=parts["environment"],
        tests=parts["tests"],
        solution=parts["solution"],
    )
    if problem := problem_of(task):
        raise ConfigError(f"task {shown} ({path}): {problem}")
    return task


def problem_of(task: HarborTask) -> str:
    """Return the reason that a task's files make no playable task; "" if there is none."""
    if not task.instruction.strip():
        return "instruction.md is empty"
    if compose := [name for name in _COMPOSE if name in task.environment]:
        return f"environment/{compose[0]}: tasks of several containers are not played"
    section = task.config.get("environment")
    published = section.get("docker_image") if isinstance(section, Mapping) else None
    if "Dockerfile" not in task.environment and not published:
        return "environment/Dockerfile is missing, and task.toml has no environment.docker_image"
    if "test.sh" not in task.tests:
        windows = " (tests/test.bat is for Windows)" if "test.bat" in task.tests else ""
        return f"tests/test.sh is missing{windows}: it has to write /logs/verifier/reward.txt"
    for folder, files in (("tests/test.sh", task.tests), ("solution/solve.sh", task.solution)):
        first = files.get(folder.partition("/")[2], b"").partition(b"\n")[0]
        if first.startswith(b"#!") and first.endswith(b"\r"):
            return f"{folder} has the line ends of Windows (CRLF), with which no shell is found"
    if task.solution and "solve.sh" not in task.solution:
        return "solution/ has no solve.sh"
    return ""


def task_folders(path: Path) -> list[Path]:
    """Return the folders with a task.toml at or below `path`, sorted; those inside a task are not
    searched, nor are links and hidden folders.

    Raises:
        ConfigError: there is none, or there are too many.
    """
    found = list(_search(path, MAX_DEPTH))
    if not found:
        raise ConfigError(
            f"{path}: no task.toml in it or below: expected a task folder in Harbor's format, or a "
            "folder of such folders (`arl new env --harbor NAME` writes one)"
        )
    if len(found) > MAX_TASKS:
        raise ConfigError(f"{path}: more than {MAX_TASKS} tasks; name a part of it")
    return sorted(found)


def _search(path: Path, depth: int) -> Iterator[Path]:
    if (path / "task.toml").is_file():
        yield path
        return
    if not depth:
        return
    try:
        with os.scandir(path) as entries:
            names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise ConfigError(f"{path}: {_described(error)}") from error
    for name in sorted(names):
        if not name.startswith("."):
            yield from _search(path / name, depth - 1)


def read_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (relative path, contents) of the files of any folder, within the limits of a task.

    Raises:
        ValueError: a link leads out of it, a file is of another kind, or a limit is passed.
    """
    yield from _files(folder, root=folder.resolve())


def _text(path: Path) -> str:
    """Return the text of a file of the task itself.

    Raises:
        OSError, ValueError: it is missing, a link, too large, or no UTF-8.
    """
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link; expected a file")
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path.name} is no regular file")
    if found.st_size > MAX_TEXT_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_TEXT_BYTES >> 20} MB")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no UTF-8: {error}") from error


def _files(top: Path, *, root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (relative path, contents) of the regular files below `top`, sorted.

    Raises:
        ValueError: a link leads out of `root`, a file is of another kind, or a limit is passed.
    """
    if top.is_symlink():
        raise ValueError(f"{top.name} is a link; expected a folder: copy its files there")
    if not top.exists():
        return
    if not top.is_dir():
        raise ValueError(f"{top.name} is no folder")
    count = total = 0
    for path in _walk(top, MAX_DEPTH):
        shown = f"{top.name}/{path.relative_to(top)}"
        try:
            shown.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{shown!r}: the name is no UTF-8") from None
        real = path.resolve()
        if path.is_symlink() and not real.is_relative_to(root):
            raise ValueError(f"{shown} is a link out of the task's folder")
        found = real.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{shown} is no regular file")
        count, total = count + 1, total + found.st_size
        if found.st_size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or count > MAX_FILES:
            raise ValueError(
                f"{shown}: too large; allowed: {MAX_FILES} files, {MAX_FILE_BYTES >> 20} MB each, "
                f"{MAX_TOTAL_BYTES >> 20} MB together: let the Dockerfile make it (RUN), or "
                "take a base image that has it"
            )
        yield path.relative_to(top).as_posix(), real.read_bytes()


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if not depth:
        raise ValueError(f"{folder.name}: more than {MAX_DEPTH} folders deep")
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, depth - 1)
        else:
            yield path


def _package_name(config: Mapping[str, object]) -> str:
    package = config.get("task")
    name = package.get("name") if isinstance(package, Mapping) else None
    return name if isinstance(name, str) else ""


def _described(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(str(error.filename)).name} is missing"
    if isinstance(error, tomllib.TOMLDecodeError):
        return f"task.toml is no TOML: {error}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
