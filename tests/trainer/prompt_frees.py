"""The wait for gloo's threads that a count of bytes needs: such a thread lets go of the tensors of
an exchange after the exchange is done, on a busy machine at any later time."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from agentgym_rl.trainer import slices

_EXCHANGES = "all_gather_single", "reduce_scatter_single"
_OLD_NAMES = "all_gather_into_tensor", "reduce_scatter_tensor"  # before torch 2.13


class _Done:
    """The handle of an exchange that is done."""

    def wait(self) -> None: ...


def wait_for_frees() -> None:
    """Let each exchange of tensors in this process return only when nothing but it holds them."""
    for name in _EXCHANGES if hasattr(dist, _EXCHANGES[0]) else _OLD_NAMES:
        setattr(dist, name, partial(_exchange, getattr(dist, name)))
    slices._gather = partial(_exchange, slices._gather)


def _exchange(act: Any, *given: Any, async_op: bool = False, **named: Any) -> _Done | None:
    tensors = [it for it in (*given, *named.values()) if isinstance(it, torch.Tensor)]
    before = [*map(_holders, tensors)]
    act(*given, **named)
    deadline = time.monotonic() + 120
    while [*map(_holders, tensors)] != before:
        assert time.monotonic() < deadline, "the tensors of an exchange are still held"
        time.sleep(0.0005)
    return _Done() if async_op else None


def _holders(tensor: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
