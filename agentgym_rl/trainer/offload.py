"""What a rank holds, off its device while engines have it (`cluster.colocated`).

On GPUs experimental: never run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Offload:
    """Moves models and the state of their optimizers away from `device` and back.

    What is not on `device` stays where it is: all of it on a CPU, a model of which FSDP2 keeps the
    parameters there (`trainer.cpu_offload`), and what of an optimizer's state always is.
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        optimizers: Iterable[torch.optim.Optimizer],
        *,
        device: torch.device,
        aside: torch.device | None = None,
    ):
        self._models, self._optimizers = list(models), list(optimizers)
        self._device, self._aside = device, aside or torch.device("cpu")
        self._is_away = False
        self._moved: list[nn.Module] = []
        self._were_there: list[tuple[dict[Any, Any], Any]] = []
        """States of the optimizers, with the keys whose tensors were on the device."""

    def away(self) -> None:
        """Leave the device; gradients are dropped, which are of no use between batches. Idempotent.

        A sharded model is sharded again, and its parameters stay the same objects.
        """
        if self._is_away or self._device.type == self._aside.type:
            return
        for model in self._models:
            for parameter in model.parameters():
                parameter.grad = None
            if any(it.device.type == self._device.type for it in model.parameters()):
                model.to(self._aside)
                self._moved.append(model)
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                for key, value in state.items():
                    if isinstance(value, Tensor) and value.device.type == self._device.type:
                        state[key] = value.to(self._aside)
                        self._were_there.append((state, key))
        self._is_away = True
        if self._device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()  # to the engines' processes

    def back(self) -> None:
        """Have all of it on the device again. Idempotent."""
        if not self._is_away:
            return
        for model in self._moved:
            model.to(self._device)
        self._moved.clear()
        for state, key in self._were_there:
            state[key] = state[key].to(self._device)
        self._were_there.clear()
        self._is_away = False
