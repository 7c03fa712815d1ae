"""Models in float64 throughout: transformers rounds norms, routers and softmaxes to float32, and a
division of rows or matrices then shows in the last bits of float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.integrations import moe


def widen() -> None:
    """Let this process keep float64 numbers where models would round them to float32."""
    for name in ("to", "type"):
        setattr(Tensor, name, _wide(getattr(Tensor, name)))
    to_float = Tensor.float
    Tensor.float = lambda self: self if self.dtype == torch.float64 else to_float(self)  # type: ignore[method-assign]
    for place in (torch.nn.functional, torch, Tensor):
        place.softmax = _wide(place.softmax, instead=None)  # type: ignore[method-assign]
    moe._can_use_grouped_mm = lambda *args: False  # it has no float64


def _wide(compute: Any, instead: torch.dtype | None = torch.float64) -> Any:
    """Return a method that is called with `instead` where float64 would become float32."""

    def wide(self: Tensor, *args: Any, **options: Any) -> Tensor:
        if self.dtype == torch.float64:
            args = tuple(instead if it is torch.float32 else it for it in args)
            if options.get("dtype") is torch.float32:
                options["dtype"] = instead
        return compute(self, *args, **options)

    return wide
