"""The effect of rounding on a model's logits, measured by changing the rounding.

Two correct ways to compute a model differ by rounding. Most models keep such differences at the
size of a rounding error; some trained ones amplify them a thousandfold at tokens that they did not
expect, so a fixed tolerance would reject a correct computation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_TRIALS = 4
_TIMES = 8.0
"""The factor between the largest difference of the trials and what is taken for rounding: a
kernel's sum of products has a larger error than the one rounding that a trial changes."""
_MOST = 1e-2
"""The tolerance beyond which a wrong computation could pass for a rounded one."""


def tolerance(model: Any, difference: float, least: float, compute: Callable[[], Tensor]) -> float:
    """Return the allowed difference: the largest one that rounding explains, in units of the
    largest logit. It is `least` where no trial could change the verdict.

    Args:
        least: The tolerance for a model that does not amplify rounding.
        compute: The model's own forward, which returns logits.
    """
    if not least <= difference < _MOST:
        return least
    expected, found = compute(), least / _TIMES
    for seed in range(_TRIALS):
        with _rounded_otherwise(model, seed):
            found = max(found, relative_difference(compute(), expected))
    return min(found * _TIMES, _MOST)


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, in units of the largest expected value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


@contextmanager
def _rounded_otherwise(model: Any, seed: int) -> Generator[None]:
    """Move each number that a layer returns by one unit in its last place, up or down."""
    generator = torch.Generator().manual_seed(seed)

    def move(layer: Any, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        up = torch.randint(2, output.shape, generator=generator).to(output.device)
        return output * (1 + (2 * up - 1) * torch.finfo(output.dtype).eps)

    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    hooks = [layer.register_forward_hook(move) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
