"""The checks that every backend makes before it runs anything, using the standard library only."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from agentgym_rl import SandboxUnavailable
from agentgym_rl.gym.sandbox import Image, work_path


def require_sdk(name: str) -> None:
    """Check that the package `name`, which the extra of the same name installs, is installed.

    Raises:
        SandboxUnavailable: the package is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise SandboxUnavailable(
            f"the {name} sandbox needs the package {name!r}, which is not installed: "
            f'pip install "agentgym-rl[{name}]"'
        )


def check_words(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Check that a kernel can take these arguments and environment variables.

    Raises:
        ValueError: it cannot, as one contains NUL or is not Unicode, for example.
    """
    if isinstance(argv, str) or not argv or not all(_is_word(word) for word in argv):
        raise ValueError(f"argv {argv!r}: expected a list of words without NUL, in Unicode")
    for name, value in env.items():
        if not name or "=" in name or not _is_word(name) or not _is_word(value):
            raise ValueError(f"env {name!r}: expected a name without '=', and no NUL")


def sandbox_path(path: str, image: Image | None) -> PurePosixPath:
    """Return a path of a sandbox, normalized: relative if it is in the work folder, and absolute
    if it is elsewhere in an image.

    Raises:
        ValueError: it is empty, has a NUL or "..", or leads out of a sandbox without an image.
    """
    if image is None:
        return work_path(path)
    pure = PurePosixPath(path)
    if not path or "\0" in path or ".." in pure.parts:
        raise ValueError(f"path {path!r}: expected one without '..' and NUL")
    if not pure.is_absolute():
        return pure
    pure = PurePosixPath("/" + path.lstrip("/"))
    return pure.relative_to(image.work_dir) if pure.is_relative_to(image.work_dir) else pure


def checked_files(files: Mapping[str, bytes], image: Image | None = None) -> dict[str, bytes]:
    """Return the files to be written, with paths normalized by `sandbox_path`.

    Raises:
        ValueError: a path leads out of the work folder, or is the folder itself.
        TypeError: the content of a file is not bytes.
    """
    found = {}
    for path, data in files.items():
        clean = sandbox_path(path, image)
        if clean == clean.parent:
            raise ValueError(f"path {path!r} is the work folder itself, or the root")
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"file {path!r}: expected bytes, got {type(data).__name__}")
        found[str(clean)] = bytes(data)
    return found


def _is_word(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
