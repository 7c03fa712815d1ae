"""A part of torchvision that its wheel lacks beside a CPU build of torch.

SGLang imports torchvision, whose wheel has C++ operators for CUDA alone: beside a CPU torch they
are not loaded, and the Python part fails at the first one that it registers a meta function for.
Their declarations are enough for the import. `arl_cpu_stand_ins.pth` imports this module in every
process of the environment.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from typing import Any

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """A finder that finds nothing, and declares the operators when torchvision is looked for."""

    def __init__(self) -> None:
        self._library: Any = None
        """The declarations, which last as long as this object."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Return None, so that the next finder is asked."""
        if fullname == "torchvision" and self._library is None:
            import torch

            self._library = torch.library.Library("torchvision", "FRAGMENT")
            for name in _OPERATORS:
                if not hasattr(torch.ops.torchvision, name):
                    self._library.define(name + _SIGNATURE)


class _BeforeLora(importlib.abc.MetaPathFinder):
    """A finder that finds nothing, and lets tensors stay unpinned when SGLang's LoRA is looked for:
    its backend of torch pins memory, which needs an accelerator."""

    def __init__(self) -> None:
        self._is_done = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Return None, so that the next finder is asked."""
        if fullname != "sglang.srt.lora" or self._is_done:
            return
        self._is_done = True
        import torch

        for name in ("tensor", "zeros", "empty"):
            setattr(torch, name, _unpinned(getattr(torch, name)))
        torch.Tensor.pin_memory = lambda tensor, *_: tensor


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return `make` without its parameter `pin_memory`."""

    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    return made


sys.meta_path[:0] = [_BeforeTorchvision(), _BeforeLora()]
