"""A policy version that is a LoRA adapter, and its merge into the base weights; and the check of a
version's weights against those of the model's folder.

The tensors of an adapter have peft's names. Two more numbers are stored: the scaling of each pair's
product, and a checksum of the base on which the adapter was trained. The only heavy packages
imported here are torch and safetensors, so that engines can import this module.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentgym_rl.core.errors import ConfigError, WeightsError
from agentgym_rl.core.model_folder import link_weights, weight_files
from agentgym_rl.storage.weights_folder import (
    BASE,
    FUSED,
    LORA_A,
    LORA_B,
    PREFIX,
    SCALING,
    check_adapter,
    check_fits,
    check_version,
    held,
    write_adapter,
)

from .files import LazyTensors, StoredVersion, bytes_of, stored
from .parts import write_version


def is_adapter(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a version is an adapter rather than a model's weights."""
    return SCALING in tensors


def named(
    pairs: Mapping[str, tuple[Tensor, Tensor]], *, scaling: float, base: int
) -> dict[str, Tensor]:
    """Return an adapter made of the matrices A [rank, in] and B [out, rank] of each layer."""
    tensors = {
        SCALING: torch.tensor(scaling, dtype=torch.float64),
        BASE: torch.tensor(base, dtype=torch.int64),
    }
    for layer, (a, b) in pairs.items():
        tensors |= {f"{PREFIX}{layer}{LORA_A}": a, f"{PREFIX}{layer}{LORA_B}": b}
    return tensors


def peft_tensors(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the adapter that belong in peft's file."""
    return {name: tensor for name, tensor in adapter.items() if name not in (SCALING, BASE)}


def merged(adapter: Mapping[str, Tensor], model_dir: Path) -> Mapping[str, Tensor]:
    """Return all weights of the model in `model_dir` with `adapter` merged, under its files' names.

    Changed weights, W + scaling · B A, are in float32 or better. Each is computed or copied when it
    is accessed.

    Raises:
        WeightsError: the adapter was trained on another base, or does not fit this one.
    """
    base = read_base(model_dir)
    shapes = {name: tuple(tensor.shape) for name, tensor in adapter.items()}
    layers = check_adapter(shapes, model_dir, base=int(adapter[BASE]))
    scaling = float(adapter[SCALING])
    pairs = {
        weight: (adapter[layer + LORA_A], adapter[layer + LORA_B])
        for layer, weight in layers.items()
    }

    def read(name: str) -> Tensor:
        if name not in pairs:
            return base[name].clone()  # without a mapping of the file
        (a, b), old = pairs[name], base[name]
        dtype = torch.promote_types(torch.promote_types(a.dtype, old.dtype), torch.float32)
        return torch.addmm(old.to(dtype), b.to(dtype), a.to(dtype), alpha=scaling)

    return LazyTensors(base, read)


def read_base(model_dir: Path) -> dict[str, Tensor]:
    """Return the tensors of a model folder's safetensors files, mapped into memory.

    Raises:
        WeightsError: there are no tensors, or they cannot be read.
    """
    tensors: dict[str, Tensor] = {}
    try:
        for path in weight_files(model_dir):
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ConfigError, SafetensorError, RuntimeError, ValueError) as error:
        raise WeightsError(f"cannot read the weights in {model_dir}: {error}") from error
    if not tensors:
        raise WeightsError(f"{model_dir} has no safetensors files, which an adapter is merged into")
    return tensors


def check_finite(name: str, tensor: Tensor, *, what: str) -> None:
    """Check that no value is infinite or NaN, without a temporary of the tensor's size.

    Raises:
        WeightsError: a value is infinite or NaN.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return
    # A sum is several times faster to check. It is finite only if all values are; but it may
    # overflow even if they are.
    if not (math.isfinite(tensor.sum()) or all(math.isfinite(it) for it in tensor.aminmax())):
        raise WeightsError(f"{what}: {name} has values that are not finite")


# ------------------------------------------------------------------ for engines that check nothing


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
        seconds = (given[name] for name in given if name.endswith(LORA_B))
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
