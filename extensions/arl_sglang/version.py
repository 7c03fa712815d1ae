"""A policy version for servers of SGLang, which load any tensors that they get: it is checked
against the model's folder before one is touched, and brought into a form that SGLang loads."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from agentgym_rl.core import WeightsError, link_weights
from agentgym_rl.engines import FUSED
from agentgym_rl.storage import MATRIX_B, check_version
from agentgym_rl.storage.weights_folder import check_fits, held
from agentgym_rl.weights import StoredVersion, bytes_of, write_version
from agentgym_rl.weights.adapter import merged
from agentgym_rl.weights.files import stored

from .adapters import write_adapter

_ROWS = 64
"""The number of which SGLang pads the rows of an embedding to a multiple, with zeros."""


class WholeVersion:
    """The weights of a version. They are checked against the model in `model_dir` once for all
    servers, at the first access, before any server is changed.

    `source` is the file of the version, or its tensors; either may be an adapter.
    """

    def __init__(self, source: Path | Mapping[str, Tensor], model_dir: Path | None) -> None:
        self._source = source
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._failure = ""
        self._given: Mapping[str, Tensor] | None = None
        self._tensors: Mapping[str, Tensor] | None = None
        self._is_adapter = False
        self._folders: dict[str, Path] = {}
        self._sums: dict[tuple[str, torch.dtype], frozenset[str]] = {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return all tensors of the model, by the names of its folder; each is read or computed
        when it is accessed.

        Raises:
            WeightsError: they are damaged, or do not belong to the model.
        """
        with self._lock:
            given = self._checked()
            if self._tensors is None:
                self._tensors = self._merged(given) if self._is_adapter else given
            return self._tensors

    def folder(self) -> Path:
        """Return a folder in Hugging Face's format with the version; it exists until `close`.

        Raises:
            WeightsError: see `tensors`; or the folder cannot be made.
        """
        tensors = self.tensors()
        assert isinstance(self._source, Path)
        if not self._is_adapter and (self._source / "config.json").is_file():
            return self._source  # it is such a folder itself
        return self._folder("whole", partial(self._fill, tensors=tensors))

    def adapter(self) -> Path:
        """Return a folder in peft's format with the version; it exists until `close`.

        Raises:
            WeightsError: see `tensors`; the version is not an adapter; or the folder cannot be
                made.
        """
        with self._lock:
            self._checked()
        if not self._is_adapter:
            raise WeightsError(
                f"{self._what} are no adapter, and a server started with --enable-lora takes no "
                "other weights"
            )
        assert isinstance(self._source, Path)
        assert self._model_dir is not None
        write = partial(write_adapter, self._source, model_dir=self._model_dir)
        return next(self._folder("adapter", write).iterdir())

    def changes_nothing(self) -> bool:
        """Return whether the version is an adapter without effect on its base, as the initial one
        is.

        Raises:
            WeightsError: see `tensors`.
        """
        with self._lock:
            given = self._checked()
        seconds = (given[name] for name in given if name.endswith(MATRIX_B))
        return self._is_adapter and not any(tensor.any() for tensor in seconds)

    @property
    def _what(self) -> str:
        return f"weights {self._source}" if isinstance(self._source, Path) else "the weights"

    def _folder(self, kind: str, fill: Callable[[Path], object]) -> Path:
        """Return the folder of a kind, which is made and filled at the first call."""
        with self._lock:
            if kind not in self._folders:
                assert isinstance(self._source, Path)
                folder = self._source.with_name(f".sglang-{self._source.name}-{kind}")
                try:
                    shutil.rmtree(folder, ignore_errors=True)  # left by a trainer that died
                    folder.mkdir()
                    try:
                        fill(folder)
                    except BaseException:  # the next server gets no part of it
                        shutil.rmtree(folder, ignore_errors=True)
                        raise
                except OSError as error:
                    raise WeightsError(f"cannot make {folder} for SGLang: {error}") from error
                self._folders[kind] = folder
            return self._folders[kind]

    def _fill(self, folder: Path, *, tensors: Mapping[str, Tensor]) -> None:
        """Make an empty folder a model folder with `tensors`: those of the version, or of the merge
        of an adapter."""
        assert isinstance(self._source, Path)
        assert self._model_dir is not None
        path = write_version(folder, 0, tensors) if self._is_adapter else self._source
        link_weights(path, self._model_dir, folder)

    def expected(self, name: str, dtype: torch.dtype) -> frozenset[str]:
        """Return the checksums that SGLang may report for its tensor `name` of `dtype` on a CPU;
        empty if it is not known from which tensors it is made."""
        key, tensors = (name, dtype), self.tensors()
        if key not in self._sums:
            parts = [name]
            for fused, members in FUSED.items():
                if f".{fused}." in name:
                    parts = [name.replace(f".{fused}.", f".{member}.") for member in members]
            if all(part in tensors for part in parts):
                whole = torch.cat([tensors[part].detach().to("cpu", dtype) for part in parts])
                rows = torch.zeros(-len(whole) % _ROWS, *whole.shape[1:], dtype=dtype)
                found = frozenset({_sum(whole), _sum(torch.cat([whole, rows]))})
            else:
                found = frozenset()
            self._sums[key] = found
        return self._sums[key]

    def close(self) -> None:
        """Close the file, and remove the folders that were made."""
        with self._lock:
            self._open.close()
            for folder in self._folders.values():
                shutil.rmtree(folder, ignore_errors=True)
            self._folders.clear()
            self._given, self._tensors = None, None

    def _checked(self) -> Mapping[str, Tensor]:
        """Return the tensors of the version, or of its adapter; they are checked once."""
        if self._failure:
            raise WeightsError(self._failure)
        if self._given is None:
            try:
                self._given = self._check()
            except WeightsError as failure:
                self._failure = str(failure)
                raise
        return self._given

    def _check(self) -> Mapping[str, Tensor]:
        source, model_dir = self._source, self._model_dir
        if model_dir is None:
            raise WeightsError("the publisher has no model folder to check a version against")
        if not isinstance(source, Path):
            self._is_adapter = _check_all(source, model_dir, what=self._what)
            return source
        # It is held until the end, so that it is not overwritten while it is read.
        self._open.enter_context(held(source))
        self._is_adapter = check_version(source, model_dir)
        version = StoredVersion(source)
        self._open.callback(version.close)
        return version

    def _merged(self, adapter: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        assert self._model_dir is not None
        whole = merged(dict(adapter), self._model_dir)
        _check_all(whole, self._model_dir, what=self._what)
        return whole


def _check_all(tensors: Mapping[str, Tensor], model_dir: Path, *, what: str) -> bool:
    """Check tensors as `check_fits` does."""
    return check_fits(tensors, lambda name: stored(tensors[name]), model_dir, what=what)


def _sum(tensor: Tensor) -> str:
    """Return the checksum of SGLang's /weights_checker for a tensor on a CPU."""
    return hashlib.sha256(bytes_of(tensor).numpy().data).digest()[:8].hex()
