"""A stand-in for SGLang's kernels, which have no build for CPUs on PyPI.

SGLang imports names from this package. On a CPU without AMX it calls none of them for a dense
model, and computes with torch instead; a call says which kernel is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a function that fails when it is called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} is a stand-in: this model needs a kernel that SGLang has for GPUs "
            "and for CPUs with AMX only"
        )

    return missing
