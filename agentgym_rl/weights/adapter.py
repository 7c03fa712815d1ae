"""A policy version that is a LoRA adapter, and the weights that it makes of its base; the check of
a version's weights against those of the model's folder.

The tensors of an adapter have peft's names. Two more numbers are stored: the scaling of each pair's
product, and a checksum of the base that the adapter was trained on. The only heavy packages
imported here are torch and safetensors, so that engines can import this.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import threading
import zlib
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentgym_rl.core.errors import ConfigError, WeightsError
from agentgym_rl.core.model_folder import (
    check_shapes,
    link_weights,
    tensor_heads,
    weight_files,
)

from .files import LazyTensors, bytes_of, opened_version, summed
from .parts import write_version

SCALING = "lora_scaling"
"""The name of the scaling, alpha / rank, float64 []."""
BASE = "lora_base"
"""The name of the base's `base_checksum`, int64 []."""
PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"


def is_adapter(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a version is an adapter rather than a model's weights."""
    return SCALING in tensors


def named(
    pairs: Mapping[str, tuple[Tensor, Tensor]], *, scaling: float, base: int
) -> dict[str, Tensor]:
    """Return an adapter of matrices A [rank, in] and B [out, rank] by name of layer."""
    tensors = {
        SCALING: torch.tensor(scaling, dtype=torch.float64),
        BASE: torch.tensor(base, dtype=torch.int64),
    }
    for layer, (a, b) in pairs.items():
        tensors |= {f"{PREFIX}{layer}{_A}": a, f"{PREFIX}{layer}{_B}": b}
    return tensors


def peft_tensors(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of this adapter that peft has in its file."""
    return {name: tensor for name, tensor in adapter.items() if name not in (SCALING, BASE)}


def merged(adapter: Mapping[str, Tensor], model_dir: Path) -> Mapping[str, Tensor]:
    """Return all weights of the model in `model_dir` with `adapter` merged, under its files' names.

    Changed weights, W + scaling · B A, are in float32 or better. All are made or copied when they
    are asked for.

    Raises:
        WeightsError: the adapter was trained on another base, or does not fit this one.
    """
    base = read_base(model_dir)
    ours, theirs = base_checksum(model_dir), int(adapter[BASE])
    if ours != theirs:
        raise WeightsError(
            f"the adapter was trained on other weights (crc32 {theirs:08x}) than those in "
            f"{model_dir} ({ours:08x})"
        )
    scaling = float(adapter[SCALING])
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name, a in peft_tensors(adapter).items():
        if not name.endswith(_A):
            continue
        layer = name.removesuffix(_A)
        weight, b = f"{layer.removeprefix(PREFIX)}.weight", adapter.get(layer + _B)
        old = base.get(weight)
        if old is None or b is None or not _fits(old, a, b):
            raise WeightsError(f"the adapter's {layer} does not fit {weight} of {model_dir}")
        pairs[weight] = a, b

    def read(name: str) -> Tensor:
        if name not in pairs:
            return base[name].clone()  # without a mapping of the file
        (a, b), old = pairs[name], base[name]
        dtype = torch.promote_types(torch.promote_types(a.dtype, old.dtype), torch.float32)
        return torch.addmm(old.to(dtype), b.to(dtype), a.to(dtype), alpha=scaling)

    return LazyTensors(base, read)


def _fits(weight: Tensor, a: Tensor, b: Tensor) -> bool:
    """Return whether B A has the shape of `weight`."""
    return b.shape[1] == a.shape[0] and (b.shape[0], a.shape[1]) == weight.shape


def read_base(model_dir: Path) -> dict[str, Tensor]:
    """Return the tensors of a model folder's safetensors files, mapped into memory.

    Raises:
        WeightsError: there are none, or they cannot be read.
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


@cache
def base_checksum(model_dir: Path) -> int:
    """Return the CRC-32 of the tensors of `read_base`, however split into files; cached per
    process.

    Raises:
        WeightsError: see `read_base`.
    """
    crc = 0
    for sums in summed(read_base(model_dir)):
        crc = zlib.crc32(sums, crc)
    return crc


def check_finite(name: str, tensor: Tensor, *, what: str) -> None:
    """Check that no value is infinite or NaN, without a temporary of the tensor's size.

    Raises:
        WeightsError: one is.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return
    # A sum is several times faster, and only finite if all values are; the converse may fail.
    if not (math.isfinite(tensor.sum()) or all(math.isfinite(it) for it in tensor.aminmax())):
        raise WeightsError(f"{what}: {name} has values that are not finite")


# ------------------------------------------------------------------ for engines that check nothing


_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""The tensors of a model folder that SGLang keeps in one, joined along the first axis."""
_FLOATS = ("F", "BF")
"""The first letters of the dtypes of fractions in safetensors files."""
_ROWS = 64
"""The number of rows of an embedding is a multiple of this in SGLang; the rest is zero."""


class WholeVersion:
    """The weights of a version, checked against the model in `model_dir` before any server is
    touched; once, for all servers, when the first of them asks.

    `source` is the file of the version, or its tensors; either may be an adapter.
    """

    def __init__(self, source: Path | Mapping[str, Tensor], model_dir: Path | None) -> None:
        self._source = source
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._failure = ""
        self._tensors: Mapping[str, Tensor] | None = None
        self._is_adapter = False
        self._folder: Path | None = None
        self._sums: dict[tuple[str, torch.dtype], frozenset[str]] = {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return all tensors of the model, by the names of its folder; each is read or made when it
        is asked for.

        Raises:
            WeightsError: they are damaged, or are not those of the model.
        """
        with self._lock:
            if self._failure:
                raise WeightsError(self._failure)
            if self._tensors is None:
                try:
                    self._tensors = self._checked()
                except WeightsError as failure:
                    self._failure = str(failure)
                    raise
            return self._tensors

    def folder(self) -> Path:
        """Return a folder in Hugging Face's format with the version; it is there until `close`.

        Raises:
            WeightsError: see `tensors`; or the folder cannot be made.
        """
        tensors = self.tensors()
        with self._lock:
            assert isinstance(self._source, Path)
            assert self._model_dir is not None
            if not self._is_adapter and (self._source / "config.json").is_file():
                return self._source  # it is such a folder itself
            if self._folder is None:
                whole = tensors if self._is_adapter else None
                self._folder = _loadable(self._source, self._model_dir, tensors=whole)
            return self._folder

    def expected(self, name: str, dtype: torch.dtype) -> frozenset[str]:
        """Return the checksums that SGLang may report for its tensor `name`, which it has in
        `dtype` on a CPU; empty if it is not known what the tensor is made of."""
        key, tensors = (name, dtype), self.tensors()
        if key not in self._sums:
            parts = [name]
            for fused, members in _FUSED.items():
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
        """Close the file, and remove the folder that was made."""
        with self._lock:
            with suppress(WeightsError):  # a damaged file says so again
                self._open.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder, self._tensors = None, None

    def _checked(self) -> Mapping[str, Tensor]:
        if self._model_dir is None:
            raise WeightsError("the publisher has no model folder to check a version against")
        if isinstance(self._source, Path):
            what = f"weights {self._source}"
            # It stays open: nobody writes over the file of a version that somebody reads.
            stored = self._open.enter_context(opened_version(self._source))
            whole = self._fitting(stored, what=what)
            stored.verify()
            return whole
        return self._fitting(self._source, what="the weights")

    def _fitting(self, given: Mapping[str, Tensor], *, what: str) -> Mapping[str, Tensor]:
        """Return all tensors after a check of names, shapes, kinds of numbers, and values."""
        assert self._model_dir is not None
        self._is_adapter = is_adapter(given)
        whole = merged(dict(given), self._model_dir) if self._is_adapter else given
        try:
            heads = tensor_heads(self._model_dir)
        except ConfigError as error:
            raise WeightsError(f"cannot check {what}: {error}") from error
        found: dict[str, tuple[int, ...]] = {}
        for name, tensor in whole.items():
            found[name] = tuple(tensor.shape)
            head = heads.get(name)
            if head is not None and head.dtype.startswith(_FLOATS) != tensor.is_floating_point():
                raise WeightsError(f"{what}: {name} is {tensor.dtype}, the model has {head.dtype}")
            check_finite(name, tensor, what=what)
        check_shapes(found, {name: head.shape for name, head in heads.items()}, what=what)
        return whole


def _loadable(path: Path, model_dir: Path, *, tensors: Mapping[str, Tensor] | None) -> Path:
    """Return a new folder that SGLang can load: the model's config.json and the version at `path`,
    or `tensors`."""
    folder = path.with_name(f".sglang-{path.name}")
    try:
        shutil.rmtree(folder, ignore_errors=True)  # left by a trainer that died
        folder.mkdir()
        if tensors is not None:
            path = write_version(folder, 0, tensors)
        link_weights(path, model_dir, folder)
    except OSError as error:
        raise WeightsError(f"cannot make {folder} for SGLang: {error}") from error
    return folder


def _sum(tensor: Tensor) -> str:
    """Return the checksum of SGLang's /weights_checker for a tensor on a CPU."""
    return hashlib.sha256(bytes_of(tensor).numpy().data).digest()[:8].hex()
