"""The swap of new weights into vLLM's model, between two decode steps."""

# vllm is not in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)


def swap_weights(
    model: torch.nn.Module, model_config: Any, device: torch.device, tensors: Mapping[str, Tensor]
) -> None:
    """Load `tensors` (a checkpoint's names) into the running model.

    An exception leaves the model unusable: check the tensors before, end the process after.
    """
    # On a CPU, linear weights are packed and their parameters emptied, so that a plain load_weights
    # fails: the layerwise reload restores, loads and packs again.
    initialize_layerwise_reload(model)
    model.load_weights(tensors.items())  # type: ignore[operator]
    finalize_layerwise_reload(model, model_config)
    if device.type == "cpu":
        _repack_tied_heads(model)
        _repack_experts(model)
    else:
        torch.accelerator.synchronize()


def _repack_experts(model: torch.nn.Module) -> None:
    """Pack experts: vLLM 0.32 on a CPU packs them only when it loads them first. After a reload
    its kernel would take the plain numbers for packed ones, without an error.
    """
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None and hasattr(module, "w13_weight"):
            kernel.fused_experts.process_weights_after_loading(module)


def _repack_tied_heads(model: torch.nn.Module) -> None:
    """Repack tied heads: in vLLM 0.32 on a CPU they keep a packed copy of the old embedding.

    A tied model's weights have no separate head, so the reload never packs it again.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
