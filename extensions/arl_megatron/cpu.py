"""Stand-ins for what Megatron-Core asks of CUDA, for ranks on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def stand_in() -> None:
    """Let Megatron-Core run in this process without a GPU. It places tensors on the "current CUDA
    device" and keeps random states of CUDA, whatever the backend of its process groups is; without
    dropout these states are not drawn from."""
    if torch.cuda.is_available():
        return
    from megatron.core.tensor_parallel import random  # pyright: ignore

    def state(*args: Any, **more: Any) -> Tensor:
        return torch.get_rng_state()

    def set_state(new: Tensor, *args: Any, **more: Any) -> None:
        torch.set_rng_state(new)

    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.manual_seed, cuda.get_rng_state = torch.manual_seed, state
    random._get_cuda_rng_state, random._set_cuda_rng_state = state, set_state
