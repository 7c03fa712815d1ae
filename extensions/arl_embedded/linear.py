"""Matrices of a model, in the memory layout in which the device multiplies them fastest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from agentgym_rl.weights import wide_linear

_PACKED_FROM = {torch.float32: 2**20, torch.bfloat16: 0}
"""The number of elements from which a CPU gains by oneDNN's blocked layout: sixteen rows times a
float32 matrix of 3072 x 576 take 0.85 ms with it, 1.4 ms without. Smaller ones, which stay in the
cache, lose a little. A bfloat16 matrix gains at every size, up to twice."""
_ROWS = 16
"""The rows for which the layout is chosen; it proved equally fast for 1 and for 512."""


def native_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 by instructions of its own."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def gains_by_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies bfloat16 faster than float32. Of CPUs, only those with
    AMX do: one with AVX-512's instructions alone had half the speed of float32."""
    if device.type == "cuda":
        return native_bfloat16(device)
    return torch.cpu._is_amx_tile_supported()


def is_packed(weight: Tensor, *, single_rows: bool) -> bool:
    """Return whether `Linear` keeps this matrix in the blocked layout. If rows are multiplied one
    by one (`single_rows`), a float32 matrix is an eighth slower in it."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and not (single_rows and weight.dtype == torch.float32)
        and weight.numel() >= _PACKED_FROM.get(weight.dtype, weight.numel() + 1)
        and (weight.dtype != torch.bfloat16 or native_bfloat16(weight.device))
    )


def is_transposed(weight: Tensor, *, single_rows: bool) -> bool:
    """Return whether `Linear` keeps the columns of this matrix in rows: a small float32 one on a
    CPU, outside of the second-level cache, multiplies 16 rows 1.3 to 1.6 times as fast so, 64 rows
    1.3 to 1.4 times, and two rows 0.85 times. The sums are the same."""
    small = weight.numel() < _PACKED_FROM[torch.float32]
    on_cpu = weight.device.type == "cpu"
    return on_cpu and small and weight.dtype == torch.float32 and not single_rows


class Linear:
    """A projection x W^T + b, never changed."""

    __slots__ = ("_bias", "_dtype", "_packed", "_weight", "num_bytes")

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, packed: bool = False, num_bytes: int = 0
    ) -> None:
        self._weight, self._bias, self._packed = weight, bias, packed
        self._dtype = weight.dtype
        self.num_bytes = num_bytes
        """The memory in bytes; of a blocked layout, without its padding."""

    @classmethod
    def of(
        cls,
        parts: Sequence[Tensor],
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        at: torch.device,
        single_rows: bool = False,
    ) -> Linear:
        """Join `parts`, each [.., in], along their first dimension, as `dtype` on the device. A
        single one is kept if it fits as it is, and so is the bias."""
        whole = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
        weight = whole.to(at, dtype)
        bias = None if bias is None else bias.to(at, dtype)
        num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        if packed := is_packed(weight, single_rows=single_rows):
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        elif is_transposed(weight, single_rows=single_rows):
            weight = weight.t().contiguous().t()
        return cls(weight, bias, packed=packed, num_bytes=num_bytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Return [.., out] from x [.., in], multiplied in the weight's dtype, in that of x."""
        low = x.to(self._dtype)
        if self._packed:
            y = torch.ops.mkldnn._linear_pointwise(low, self._weight, self._bias, "none", [], "")
        else:
            y = F.linear(low, self._weight, self._bias)
        return y.to(x.dtype)

    def wide(self, x: Tensor) -> Tensor:
        """Return what a call does for a projection without a bias, in float32."""
        return self(x).float() if self._packed else wide_linear(self._weight, x)

    def to(self, device: torch.device | None) -> Linear:
        """Return the same projection on another device; None: without any numbers."""
        if device is None:
            return Linear(torch.empty(0, dtype=self._dtype), None)
        if self._packed:  # a packed one is on the CPU, the only place where it works
            return self
        bias = None if self._bias is None else self._bias.to(device)
        return Linear(self._weight.to(device), bias, num_bytes=self.num_bytes)
