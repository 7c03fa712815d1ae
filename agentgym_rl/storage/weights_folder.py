"""The bytes of policy versions, and the run's folder for them (no torch here).

Every bit of a version is checked before it is sent to an engine that does not check it itself: by
the publication, or by the client of such an engine.

The run's folder is in shared memory while the run lives. A folder `arl-<run id>` belongs to a live
run while a process holds the flock on its `lock` file. The kernel releases the lock when that
process dies, for any reason. A folder is made under another name, locked, then renamed: a visible
folder is either locked or of a dead run. Only the holder of the lock may remove a folder, and it
removes the lock file last.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from agentgym_rl.core import (
    ConfigError,
    WeightsError,
    base_checksum,
    check_shapes,
    parse_json,
    read_stored,
    tensor_heads,
    version_label,
)
from agentgym_rl.core.model_folder import Shapes, Stored, digest

_log = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
"""The index of a version's folder, which is written last."""
SCALING = "lora_scaling"
"""The name of an adapter's scaling, alpha / rank, float64 []."""
BASE = "lora_base"
"""The name of the `base_checksum` of the model on which an adapter was trained, int64 []."""
PREFIX, MATRIX_A, MATRIX_B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""The parts of the names of an adapter's tensors before and after the name of a layer, as in
peft."""

_EXPONENTS: Mapping[str, tuple[Any, int]] = {
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
    "F32": (np.uint32, 0x7F80_0000),
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
}
"""The bits of the exponent by dtype: all are set only in infinity and NaN."""
_AT_ONCE = 1 << 20
"""The number of values that are checked together, which is also the temporary memory in bytes."""


def version_name(version: int, *, incarnation: int = 0) -> str:
    """Return the name of a version's folder: `v7`, or `v2.7` in incarnation 2."""
    label = version_label(version, incarnation=incarnation) if incarnation else str(version)
    return f"v{label}"


def seal(index: Mapping[str, object]) -> str:
    """Return 64 bits, in hex, over the contents of an index."""
    return blake2b(json.dumps(index, sort_keys=True).encode(), digest_size=8).hexdigest()


def read_index(version: Path) -> dict[str, Any]:
    """Return the index of a version's folder.

    Raises:
        WeightsError: it is missing or damaged, or is not the index of a version.
    """
    try:
        found = parse_json((version / INDEX).read_text(encoding="utf-8"))
        intact = found["metadata"].pop("seal") == seal(found) and "digests" in found
    except (OSError, ValueError) as error:
        raise unreadable(version, error) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"weights {version} carry no digests: not written by write_version ({error!r})"
        ) from error
    if not intact:
        raise WeightsError(f"weights {version} are damaged: {INDEX} was changed")
    return found


def unreadable(version: Path, error: Exception) -> WeightsError:
    """Return the error of a version that cannot be read."""
    return WeightsError(f"cannot read weights {version} (missing, truncated or damaged): {error}")


@contextmanager
def held(version: Path) -> Generator[None]:
    """Keep a version from being pruned or overwritten, for a context.

    Raises:
        WeightsError: it is missing, is being replaced, or has been replaced.
    """
    index = version / INDEX
    try:
        opened = index.open("rb", buffering=0)
    except OSError as error:
        raise unreadable(version, error) from error
    with opened:
        try:
            _lock(index, opened.fileno())
        except OSError as error:
            raise unreadable(version, error) from error
        yield


def _lock(path: Path, fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(f"{path} is being replaced") from error
    except OSError:  # a file system without locks: no version is overwritten there either
        return
    if not os.path.samestat(os.fstat(fd), path.stat()):
        raise FileNotFoundError(f"{path} was replaced")


def check_version(version: Path, model_dir: Path) -> bool:
    """Check every bit of a version, which is `held`, and that it fits the model in `model_dir`;
    return whether it is an adapter.

    Raises:
        WeightsError: it is damaged, has values that are not finite, or belongs to another model.
    """
    index, what = read_index(version), f"weights {version}"
    try:
        heads = tensor_heads(version)
    except (OSError, ConfigError) as error:
        raise unreadable(version, error) from error

    def read(name: str) -> Stored:
        tensor, promised = read_stored(heads[name]), index["digests"].get(name)
        if (found := digest(name, tensor)) != promised:
            raise WeightsError(
                f"{what} are damaged: {name} has digest {found}, the index says {promised}"
            )
        return tensor

    return check_fits(heads, read, model_dir, what=what)


def check_fits(
    names: Collection[str], read: Callable[[str], Stored], model_dir: Path, *, what: str
) -> bool:
    """Check the names, shapes, dtypes and values of a version's tensors, each of which is `read`
    once; return whether the version is an adapter.

    Raises:
        WeightsError: they are not those of the model in `model_dir`, or not finite.
    """
    try:
        model = tensor_heads(model_dir)
    except (OSError, ConfigError) as error:
        raise WeightsError(f"cannot check {what}: {error}") from error
    is_adapter = SCALING in names
    shapes: dict[str, tuple[int, ...]] = {}
    base = 0
    for name in names:
        tensor = read(name)
        shapes[name] = tuple(tensor.shape)
        head = model.get(name)
        if head is not None and (head.dtype in _EXPONENTS) != (tensor.dtype in _EXPONENTS):
            raise WeightsError(f"{what}: {name} is {tensor.dtype}, the model has {head.dtype}")
        if not _is_finite(tensor):
            raise WeightsError(f"{what}: {name} has values that are not finite")
        if is_adapter and name == BASE:
            base = int(np.frombuffer(tensor.data, np.int64)[0])
    if not is_adapter:
        check_shapes(shapes, {name: head.shape for name, head in model.items()}, what=what)
        return False
    check_adapter(shapes, model_dir, base=base)
    return True


def check_adapter(shapes: Shapes, model_dir: Path, *, base: int) -> dict[str, str]:
    """Check that an adapter has a pair of matrices for each of its layers, that their shapes fit,
    and that it was trained on the model in `model_dir`; return the name of the model's tensor of
    each layer.

    Raises:
        WeightsError: a matrix is missing or does not fit, or the adapter was trained on another
            model.
    """
    if (ours := base_checksum(model_dir)) != base:
        raise WeightsError(
            f"the adapter was trained on other weights (crc32 {base:08x}) than those in "
            f"{model_dir} ({ours:08x})"
        )
    model = tensor_heads(model_dir)
    layers: dict[str, str] = {}
    for name in sorted(shapes.keys() - {SCALING, BASE}):
        layer = name.removesuffix(MATRIX_A).removesuffix(MATRIX_B)
        weight = layer.removeprefix(PREFIX)
        weight = f"{weight}.weight" if f"{weight}.weight" in model else weight
        pair = [shapes.get(layer + end, ()) for end in (MATRIX_A, MATRIX_B)]
        head = model.get(weight)
        if head is None or not 2 <= len(head.shape) == len(pair[0]) == len(pair[1]) <= 3:
            fits = False
        else:  # of several experts, a pair for each
            (*those, rank, columns), (*these, rows, inner) = pair
            fits = (rank, those) == (inner, these) and (*these, rows, columns) == head.shape
        if not fits:
            raise WeightsError(f"the adapter's {layer} does not fit {weight} of {model_dir}")
        layers[layer] = weight
    return layers


def _is_finite(tensor: Stored) -> bool:
    """Return whether no value is infinite or NaN."""
    if tensor.dtype not in _EXPONENTS:
        return True
    kind, exponent = _EXPONENTS[tensor.dtype]
    bits = tensor.data.view(kind)
    parts = (bits[start : start + _AT_ONCE] for start in range(0, len(bits), _AT_ONCE))
    return not any(((part & kind(exponent)) == exponent).any() for part in parts)


# ------------------------------------------------------------------ the run's folder
SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "arl-"
_UNBORN = ".arl-new-"
_LOCK = "lock"


class WeightsFolder:
    """The folder of a run's policy versions, a context manager: `with WeightsFolder(run_id) as
    folder:` returns `/dev/shm/arl-<run id>/`.

    On entry the folders of dead runs are removed, never those of live runs; at exit this run's
    folder is. It is in `root` (weights.folder), or else in shared memory. If shared memory is
    missing or has less than `need_bytes` free, the folder is in the system's temporary directory,
    with a warning.

    Raises:
        ValueError: the run id is not a plain file name.
        WeightsError: on entry, a live run has the same id, or the folder cannot be made.
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
        # The folder is being made, is half removed, or belongs to somebody else: only an empty one
        # may be removed. A new one is empty for microseconds; if it is removed then, its creation
        # fails.
        if not path.name.startswith(_UNBORN):
            path.rmdir()
            return True
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The folder may have been removed and made again since the file was opened; then this lock
        # is not that of the folder that is at `path` now.
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
        unborn.rename(path)  # fails if a folder with files exists: that of a live run
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
