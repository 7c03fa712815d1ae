"""The checks that every backend makes before it runs anything, using the standard library only."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from agentgym_rl import ConfigError, SandboxUnavailable
from agentgym_rl.core import ImageError, install_command
from agentgym_rl.gym import WORK_DIR, Image

MOUNT_PARENTS = ("/opt", "/mnt", "/srv")
"""The folders below which folders of this machine can appear: no task works there, and neither
tests nor programs of an image have their place there."""
OWN_FOLDER = "/opt/arl"
"""The folder of our own in images."""
PYTHON_OPTIONS = ("-I", "-X", "utf8", "-X", "int_max_str_digits=0")
"""The options of the interpreter that programs are forks of. It reads and writes whole numbers of
any length, as Python did before 3.10.7: a program is bounded by its CPU seconds instead."""


def require_sdk(name: str) -> None:
    """Check that the package `name`, which the extra of the same name installs, is installed.

    Raises:
        SandboxUnavailable: the package is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise SandboxUnavailable(
            f"the {name} sandbox needs the package {name!r}, which is not installed: "
            f"{install_command(name)}"
        )


def checked_mounts(mounts: Mapping[str, str] | None) -> dict[str, str]:
    """Return the folders of this machine that programs can read, by their path in a sandbox.

    Raises:
        ConfigError: a folder is missing, or its path in a sandbox is not allowed.
    """
    if mounts is not None and not isinstance(mounts, Mapping):
        raise ConfigError(
            f"mounts: got {mounts!r}, expected folders by their path in a sandbox, as in TOML: "
            '{"/opt/agents" = "FOLDER"}'
        )
    found: dict[str, str] = {}
    for target, source in (mounts or {}).items():
        if not isinstance(source, str) or not os.path.isdir(os.path.expanduser(source)):
            raise ConfigError(
                f"mounts: {target!r} is to be {source!r}, which is no folder of this machine: "
                "make it, or name another"
            )
        if why := _refused_mount(target, found):
            raise ConfigError(
                f"mounts: got {target!r}, which {why}; allowed is a folder below "
                f"{', '.join(MOUNT_PARENTS)}, such as /opt/agents"
            )
        found[target] = os.path.realpath(os.path.expanduser(source))
    return found


def _refused_mount(target: str, others: Iterable[str]) -> str:
    """Return the reason against a path in sandboxes, "" if there is none."""
    pure = PurePosixPath(target)
    if not pure.is_absolute() or str(pure) != target or ".." in pure.parts or "\0" in target:
        return "is no absolute path without '..', '//' and '/' at its end"
    if not any(pure != PurePosixPath(top) and pure.is_relative_to(top) for top in MOUNT_PARENTS):
        return "may hide files of the image"
    for other in (OWN_FOLDER, *others):
        if _overlap(target, other):
            return f"overlaps {other}"
    return ""


def check_work_dir(name: str, work_dir: str, mounts: Iterable[str]) -> None:
    """Check that an image's work folder and the folders of this machine do not overlap.

    `name`: the recipe's.

    Raises:
        ImageError: they do.
    """
    for target in mounts:
        if _overlap(work_dir, target):
            raise ImageError(
                f"{name}: its work folder {work_dir} overlaps {target}, a folder of this machine "
                "by the sandbox's option `mounts`: choose another path there"
            )


def _overlap(one: str, other: str) -> bool:
    """Return True if one of the paths is in the other, or the same."""
    return PurePosixPath(one).is_relative_to(other) or PurePosixPath(other).is_relative_to(one)


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


def work_path(path: str) -> PurePosixPath:
    """Return `path` relative to the work folder, normalized ("a//b/./c" is a/b/c; it may begin with
    WORK_DIR).

    Raises:
        ValueError: the path is empty, leads out of the work folder, or has a NUL.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute():
        if not pure.is_relative_to(WORK_DIR):
            raise ValueError(f"path {path!r} is outside {WORK_DIR}")
        pure = pure.relative_to(WORK_DIR)
    if not path or "\0" in path or ".." in pure.parts:
        raise ValueError(f"path {path!r}: expected one below {WORK_DIR}, without '..'")
    return pure


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
