"""The folder of a policy version: parts of bounded size, and an index with the digest of each
tensor, in the layout of a sharded model of Hugging Face. `parts.py` writes it.

A reader that has an earlier version of the same sequence in memory reads only the tensors that have
changed since. Every tensor is compared with its digest. This needs only torch, so that engines can
do it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from agentgym_rl.core import ConfigError, TensorHead, WeightsError
from agentgym_rl.core.model_folder import Heads, Stored, digest, read_header
from agentgym_rl.runtime.atomic_file import remove
from agentgym_rl.storage import read_index
from agentgym_rl.storage.weights_folder import INDEX, held, unreadable


def stored(tensor: Tensor, data: np.ndarray | None = None) -> Stored:
    """Return a tensor in its stored form; `data` are its bytes, if they are known.

    Raises:
        WeightsError: versions do not support its dtype.
    """
    if tensor.dtype not in DTYPES:
        raise WeightsError(f"{tensor.dtype} is not stored; expected one of {list(DTYPES)}")
    if data is None:
        data = bytes_of(tensor).numpy()
    return Stored(DTYPES[tensor.dtype], tuple(tensor.shape), data)


def combined(digests: Mapping[str, str]) -> str:
    """Return 64 bits, in hex, over the digests of tensors by name; the order of the digests does
    not matter."""
    text = "".join(f"{name}:{digests[name]};" for name in sorted(digests))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return `combined` of the digests of the tensors; those of a stored version are read from its
    index."""
    if isinstance(tensors, StoredVersion | StoredTensors):
        return combined(tensors.digests)
    return combined({name: digest(name, stored(tensors[name])) for name in tensors})


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, uint8 [n], on the CPU, without a copy if it is contiguous
    there."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)


_BFLOAT16 = "BF16"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: _BFLOAT16,
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes that versions and exports support, with their names in files."""
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
"""Those dtypes by their names in files."""
_NUMPY = {
    name: np.dtype(np.int16 if name == _BFLOAT16 else torch.empty(0, dtype=dtype).numpy().dtype)
    for dtype, name in DTYPES.items()
}


class Kind(NamedTuple):
    """The dtype and the shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def kinds_of(tensors: Mapping[str, Tensor]) -> dict[str, Kind]:
    """Return the kind of each tensor; tensors of a stored version are not read for this."""
    if isinstance(tensors, KnownKinds):
        return tensors.kinds()
    return {name: Kind(it.dtype, tuple(it.shape)) for name, it in tensors.items()}


class LazyTensors(Mapping[str, Tensor]):
    """A mapping of tensors by name. Each is read or computed at every access and not kept, so that
    the mapping never has all of them in memory."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Tensor]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class KnownKinds(LazyTensors, ABC):
    """The lazy tensors whose kinds are known without reading them."""

    @abstractmethod
    def kinds(self) -> dict[str, Kind]:
        """Return the kind of each tensor.

        Raises:
            WeightsError: a file of a stored version is missing or damaged.
        """


_MOST_OPEN = 64
"""The maximum number of a version's parts that a reader has open at a time."""


class StoredVersion(KnownKinds):
    """The tensors of a version's folder, on the CPU. Each is read at its access, into new memory,
    and compared with its digest while it is in the processor's cache.

    Threads may read at the same time, as those of a publication do, one for each server: a lock
    protects the open files, of which some are closed to open others."""

    def __init__(self, path: Path) -> None:
        """Read the index of the folder `path`.

        Raises:
            WeightsError: it is missing, damaged, or not written by `parts.py`.
        """
        self.path = path
        found = read_index(path)
        try:
            self.label = str(found["metadata"]["label"])
            """The label of the version, "incarnation.version"."""
            self.version = int(found["metadata"]["version"])
            self.sequence = str(found["metadata"]["sequence"])
            """The id of the sequence of versions that one trainer wrote; empty: none."""
            self.total_size = int(found["metadata"]["total_size"])
            """The size of all tensors in bytes."""
            self.digests = {str(name): str(it) for name, it in found["digests"].items()}
            """The digest of each tensor."""
            self.since = {str(name): int(it) for name, it in found["since"].items()}
            """The earliest version of the sequence since which each tensor has had the same
            bytes."""
            self._file_of = {str(name): str(it) for name, it in found["weight_map"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WeightsError(
                f"weights {path} carry no digests: not written by write_version ({error!r})"
            ) from error
        super().__init__(self._file_of, self._tensor)
        self._lock = threading.Lock()
        self._heads: dict[str, Heads] = {}
        self._open: dict[str, int] = {}
        """The file descriptors of parts."""
        weakref.finalize(self, _close_all, self._open)
        self._verified: set[str] = set()
        self.known: Collection[str] = ()
        """The names of tensors that the reader has already, and that need not be verified."""

    def kinds(self) -> dict[str, Kind]:
        heads = {name: self._head(name) for name in self}
        return {name: Kind(TORCH_DTYPES[it.dtype], it.shape) for name, it in heads.items()}

    def unchanged_since(self, sequence: str, version: int) -> set[str]:
        """Return the names of the tensors with the same bytes in `version` of `sequence`."""
        if not sequence or sequence != self.sequence or version > self.version:
            return set()
        return {name for name, first in self.since.items() if first <= version}

    def without(self, names: Collection[str]) -> StoredTensors:
        """Return the tensors except those of `names`."""
        return StoredTensors(self, [name for name in self if name not in names])

    def verify(self) -> None:
        """Read and verify the tensors that have not been accessed, except those in `known`.

        Raises:
            WeightsError: a tensor is missing or damaged.
        """
        for name in self._file_of.keys() - self._verified - set(self.known):
            self._tensor(name)

    def close(self) -> None:
        """Close the parts; they are opened again if needed."""
        with self._lock:
            _close_all(self._open)

    def _head(self, name: str) -> TensorHead:
        file = self._file_of[name]
        with self._lock:
            if file not in self._heads:
                path = self.path / file
                try:
                    fd = self._fd(file)
                    with open(os.dup(fd), "rb", buffering=0) as opened:
                        self._heads[file] = read_header(path, opened)[1]
                except (OSError, ConfigError) as error:
                    raise unreadable(path, error) from error
            head = self._heads[file].get(name)
        if head is None or head.dtype not in TORCH_DTYPES:
            raise WeightsError(f"weights {self.path / file} are damaged: {name} is not in them")
        return head

    def _fd(self, file: str) -> int:
        if file not in self._open:
            if len(self._open) >= _MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[file] = os.open(self.path / file, os.O_RDONLY)
        return self._open[file]

    def _tensor(self, name: str) -> Tensor:
        # Few calls that release the interpreter lock: with a decoding thread in the process,
        # waiting for the lock takes longer than reading a small tensor.
        head = self._head(name)
        path = self.path / self._file_of[name]
        data = torch.empty(head.stop - head.start, dtype=torch.uint8).numpy()
        try:
            with self._lock:
                fd = self._fd(self._file_of[name])
                if not read_at(fd, data, head.start):
                    raise WeightsError(f"weights {path} are cut short in {name}")
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            plain = data.view(_NUMPY[head.dtype]).reshape(head.shape)
        except ValueError as error:
            raise WeightsError(
                f"weights {path} are damaged: {name} is {len(data)} bytes, "
                f"{head.dtype} {head.shape}"
            ) from error
        tensor = torch.from_numpy(plain)
        if head.dtype == _BFLOAT16:
            tensor = tensor.view(torch.bfloat16)
        if name not in self._verified:
            found = digest(name, Stored(head.dtype, head.shape, data))
            if found != self.digests[name]:
                raise WeightsError(
                    f"weights {path} are damaged: {name} has digest {found}, the index says "
                    f"{self.digests[name]}"
                )
            self._verified.add(name)
        return tensor


class StoredTensors(KnownKinds):
    """Some tensors of a stored version."""

    def __init__(self, version: StoredVersion, names: Iterable[str]) -> None:
        super().__init__(names, version.__getitem__)
        self._version = version

    def kinds(self) -> dict[str, Kind]:
        kinds = self._version.kinds()
        return {name: kinds[name] for name in self}

    @property
    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor."""
        return {name: self._version.digests[name] for name in self}


def read_at(fd: int, data: np.ndarray, start: int) -> bool:
    """Fill `data`, an array of bytes, from an open file at `start`; return False if the file ends
    before.

    Raises:
        OSError: the file cannot be read.
    """
    done = 0
    while done < len(data):
        read = os.preadv(fd, [data[done:].data], start + done)
        if not read:
            return False
        done += read
    return True


def _close_all(files: dict[str, int]) -> None:
    for fd in files.values():
        os.close(fd)
    files.clear()


_BLOCK_NAME = re.compile(r"(?:.*?\.)?\d+\.")


def block_of(name: str) -> str:
    """Return the block of the model to which a tensor belongs, as `model.layers.3.`; "" outside of
    blocks."""
    found = _BLOCK_NAME.match(name)
    return found[0] if found else ""


def whole_units(names: Collection[str], same: Collection[str]) -> set[str]:
    """Return the tensors among `names` whose complete block of the model (or module, outside of
    blocks) is in `same`: an engine may fuse the tensors of a block."""

    def unit(name: str) -> str:
        return block_of(name) or name.rpartition(".")[0]

    changed = {unit(name) for name in names if name not in same}
    return {name for name in names if unit(name) not in changed}


@contextmanager
def opened_version(path: Path) -> Iterator[StoredVersion]:
    """Open a version for a context. At its end all tensors have been verified, also those that were
    not accessed, except those in the reader's `known`; do not use any of them before. Meanwhile the
    folder is neither pruned nor overwritten.

    Raises:
        WeightsError: it is missing, truncated, damaged, or not written by this package.
    """
    with held(path):
        version = StoredVersion(path)
        with contextlib.closing(version):
            yield version
            version.verify()


def take(version: Path, to: Path) -> bool:
    """Rename the folder of a version, unless it is being read; return whether it was renamed."""
    with contextlib.suppress(OSError), (version / INDEX).open("rb") as index:
        fcntl.flock(index.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        version.replace(to)
        return True
    return False


_NAME = re.compile(r"v(?:(\d+)\.)?(\d+)")


def stored_versions(folder: Path) -> list[Path]:
    """Return the folders of the versions in `folder`, the oldest first."""
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda pair: (int(pair[0][1] or 0), int(pair[0][2])))
    return [path for _, path in found]


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` versions of `folder`, and return the removed ones; a version
    that is being read stays until a later call."""
    found = stored_versions(folder)
    removed: list[Path] = []
    for path in found[: max(0, len(found) - keep)]:
        away = path.with_name(f".{path.name}.old")
        if take(path, away):
            remove(away)
            removed.append(path)
    return removed


class Form(Protocol):
    """A form of a version that a kind of engine loads."""

    def close(self) -> None:
        """Remove what was made for it."""


F = TypeVar("F", bound=Form)


class Prepared:
    """A version, by its file or its tensors, on its way to engines of any kind; `model_dir` is the
    folder of the model to which the version belongs."""

    def __init__(self, source: Path | Mapping[str, Tensor], model_dir: Path | None) -> None:
        self.source = source
        self.model_dir = model_dir
        self._lock = threading.Lock()
        self._forms: dict[object, Form] = {}

    def as_form(self, form: Callable[[Path | Mapping[str, Tensor], Path | None], F]) -> F:
        """Return the version in a form; it is made for the first engine that needs it, and kept for
        all others."""
        with self._lock:
            if form not in self._forms:
                self._forms[form] = form(self.source, self.model_dir)
            return cast("F", self._forms[form])

    def close(self) -> None:
        """Remove what was made for engines."""
        for form in self._forms.values():
            form.close()
        self._forms.clear()
