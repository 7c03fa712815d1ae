"""The run's folder for policy versions, in shared memory while the run lives (no torch here).

A folder `arl-<run id>` is alive while a process holds the flock on its `lock` file. The kernel
releases the lock when that process dies, for any reason. A folder is made under another name,
locked, then renamed: a visible folder is either locked or of a dead run. Only the holder of the
lock may remove a folder, and it removes the lock file last.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from agentgym_rl.core.engine import version_label
from agentgym_rl.core.errors import WeightsError

_log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "arl-"
_UNBORN = ".arl-new-"
_LOCK = "lock"


def version_name(version: int, *, incarnation: int = 0) -> str:
    """Return the name of a version's folder: `v7`, or `v2.7` in incarnation 2."""
    label = version_label(version, incarnation=incarnation) if incarnation else str(version)
    return f"v{label}"


class WeightsFolder:
    """A context manager: `with WeightsFolder(run_id) as folder:` gives `/dev/shm/arl-<run id>/`.

    On entry the folders of dead runs are removed, never those of living runs; at exit this run's
    own. The folder is in `root` (weights.folder), or else in shared memory. If that is missing or
    has less than `need_bytes` free, it is in the system's temporary directory, with a warning.

    Raises:
        ValueError: a run id that is no plain file name.
        WeightsError: on entry, if a living run holds the same id, or no folder can be made.
    """

    def __init__(self, run_id: str, *, need_bytes: int = 64 << 20, root: Path | None = None):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}", run_id):
            raise ValueError(f"run id {run_id!r} is not a plain name of letters, digits, . _ -")
        self._run_id = run_id
        self._need_bytes = need_bytes
        self._root = root
        self._lock_fd = -1
        self.path = Path()
        """The path of the folder; set on entry."""

    def __enter__(self) -> Path:
        root = self._root or _pick_root(self._need_bytes)
        remove_dead(root)
        self.path = root / f"{_PREFIX}{self._run_id}"
        try:
            self._lock_fd = _create_locked(root, self.path)
        except OSError as error:
            raise WeightsError(
                f"cannot make the weights folder {self.path}: {error}. "
                "If it exists, a living run has this id"
            ) from error
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            _empty_and_remove(self.path)
        except OSError as failure:
            # The next run tries again once this lock is released; the run itself has succeeded.
            _log.warning("weights folder %s was not removed: %s", self.path, failure)
        finally:
            os.close(self._lock_fd)
            self._lock_fd = -1


def remove_dead(root: Path) -> list[Path]:
    """Remove the weights folders under `root` of dead runs; return the removed ones."""
    removed: list[Path] = []
    for path in sorted(root.glob(f"{_PREFIX}*")) + sorted(root.glob(f"{_UNBORN}*")):
        try:
            if path.is_dir() and not path.is_symlink() and _remove_if_dead(path):
                removed.append(path)
        except OSError as error:  # another user's folder, or one just removed
            _log.debug("left %s alone: %s", path, error)
    if removed:
        _log.info("removed weights of %d dead runs under %s", len(removed), root)
    return removed


def _remove_if_dead(path: Path) -> bool:
    try:
        fd = os.open(path / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        # The folder is just being made, half removed, or somebody else's: only an empty one may be
        # removed. A new one is empty for microseconds; if it loses that race, its creation fails.
        if not path.name.startswith(_UNBORN):
            path.rmdir()
            return True
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The folder may have been removed and made anew since the open; then this lock is not the
        # one of the folder that `path` names now.
        if os.fstat(fd).st_ino != (path / _LOCK).stat().st_ino:
            return False
        _empty_and_remove(path)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def _create_locked(root: Path, path: Path) -> int:
    unborn = Path(tempfile.mkdtemp(prefix=_UNBORN, dir=root))
    fd = os.open(unborn / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unborn.rename(path)  # fails if a folder with files exists: a living run's
    except OSError:
        shutil.rmtree(unborn, ignore_errors=True)
        os.close(fd)
        raise
    return fd


def _empty_and_remove(path: Path) -> None:
    for item in path.iterdir():
        if item.name == _LOCK:
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink(missing_ok=True)
    (path / _LOCK).unlink(missing_ok=True)
    path.rmdir()


def _pick_root(need_bytes: int) -> Path:
    fallback = Path(tempfile.gettempdir())
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        _log.warning("no shared memory at %s: weights go to %s", SHARED_MEMORY, fallback)
        return fallback
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < need_bytes:
        _log.warning(
            "%s has %d MB free, weights need %d MB: they go to %s "
            "(in a container, give it more with --shm-size)",
            SHARED_MEMORY, free >> 20, need_bytes >> 20, fallback,
        )  # fmt: skip
        return fallback
    return SHARED_MEMORY
