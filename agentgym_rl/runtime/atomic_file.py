"""The creation of files and folders that exist only once they are complete: they are written under
another name in the same folder, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from agentgym_rl.core import ConfigError


def unfinished_path(path: Path) -> Path:
    """Return the default path of the unfinished file or folder for `path`."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def replacing(path: Path, *, part: Path | None = None) -> Iterator[Path]:
    """Yield a free path for a file or folder, which then replaces `path`; after a failure no part
    of it is left.

    `part` is that path, by default `unfinished_path(path)`: with the process ID in its name,
    several processes can write at the same time. Nothing is fsynced: `path` survives its writer,
    but perhaps not a power cut.
    """
    part = part or unfinished_path(path)
    remove(part)  # left by a process that was killed
    try:
        yield part
        put(part, path)
    finally:
        remove(part)


def put(part: Path, path: Path, *, durable: bool = False) -> None:
    """Rename `part`, a complete file or folder, to `path`, replacing any existing one. If
    `durable`, first sync it to disk, with the files in it, and then the rename."""
    is_folder = part.is_dir()
    if durable:
        for item in (*(part.iterdir() if is_folder else ()), part):
            _fsync(item)
    if is_folder and path.exists():
        shutil.rmtree(path)
    part.replace(path)
    if durable:
        _fsync(path.parent)


def remove(part: Path) -> None:
    """Remove a file or folder, if it exists, as far as possible."""
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            part.unlink()


def replace_text(path: Path, text: str, *, part: Path | None = None) -> None:
    """Replace the file at `path` by one with `text`, as `replacing` does."""
    with replacing(path, part=part) as file:
        file.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def new_file(path: Path, *, argument: str) -> Iterator[TextIO]:
    """Open a file that gets its name once it is complete; after a failure no part of it is left.

    Raises:
        ConfigError: the path exists already, or cannot be written; the message quotes `argument`,
            the user's input.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with contextlib.ExitStack() as stack:
        try:
            if os.path.lexists(path):
                raise ConfigError(f"{argument}: the file exists; name a new one")
            stack.enter_context(replacing(path, part=part))
            file = stack.enter_context(part.open("w", encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{argument}: {error}") from error
        yield file


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
