"""The offload of a rank's models from its device while engines have it (`cluster.colocated`).

Experimental on GPUs: never run there.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Offload:
    """An offloader of models and their optimizers' state from `device`, and back.

    Tensors that are not on `device` stay where they are: all of them on a CPU, parameters that
    FSDP2 keeps there (`trainer.cpu_offload`), and optimizer state that is always there.
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
        """The states of the optimizers, with the keys whose tensors were on the device."""

    def away(self) -> None:
        """Move all off the device, and drop gradients, which are not needed between batches.
        Idempotent.

        A sharded model is resharded first, and its parameters stay the same objects.
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
            torch.cuda.empty_cache()  # so that the engines' processes can use it

    def back(self) -> None:
        """Move everything back to the device. Idempotent."""
        if not self._is_away:
            return
        for model in self._moved:
            model.to(self._device)
        self._moved.clear()
        for state, key in self._were_there:
            state[key] = state[key].to(self._device)
        self._were_there.clear()
        self._is_away = False
