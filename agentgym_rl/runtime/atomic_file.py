"""Files and folders that exist only once they are complete: written beside, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from agentgym_rl.core.errors import ConfigError


def unfinished_path(path: Path) -> Path:
    """Return the default path at which `path` is written until it is complete."""
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
    """Rename `part`, a complete file or folder, to `path`, replacing what is there. If `durable`,
    it is on disk before, with the files in it, and so is the rename after."""
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
    """Remove a file or folder that may be there, as far as that is possible."""
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
def new_file(path: Path, *, said: str) -> Iterator[TextIO]:
    """Open a file that gets its name once it is complete; after a failure no part of it is left.

    Raises:
        ConfigError: the path exists already, or cannot be written; the message quotes `said`, the
            argument of the user.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with contextlib.ExitStack() as stack:
        try:
            if os.path.lexists(path):
                raise ConfigError(f"{said}: the file exists; name a new one")
            stack.enter_context(replacing(path, part=part))
            file = stack.enter_context(part.open("w", encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{said}: {error}") from error
        yield file


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
