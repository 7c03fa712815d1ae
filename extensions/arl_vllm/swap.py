"""The swap of new weights, or of a new adapter, into vLLM's model, between two decode steps."""

# vllm is not in the environment that checks types.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.models.utils import is_pp_missing_parameter

from agentgym_rl.core import WeightsError
from agentgym_rl.storage.weights_folder import SCALING
from agentgym_rl.weights import peft_tensors

ADAPTER_ID = 1
"""The number of the first adapter of --lora-modules, the only one of a server."""


def serves_adapter(model: torch.nn.Module) -> bool:
    """Return whether the server computes an adapter in addition to the model (--enable-lora)."""
    return hasattr(model, "lora_manager")


def loaded_adapter(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> LoRAModel:
    """Return a version that is an adapter as vLLM's layers take it; the model is not touched.

    Raises:
        WeightsError: its rank is too large, or a layer has no place for it in vLLM.
    """
    manager: Any = model.lora_manager
    pairs = peft_tensors(tensors)
    rank = next(len(tensor) for name, tensor in pairs.items() if ".lora_A." in name)
    if rank > manager.lora_config.max_lora_rank:
        raise WeightsError(
            f"the adapter has rank {rank}, the server --max-lora-rank "
            f"{manager.lora_config.max_lora_rank}"
        )
    alpha: Any = float(tensors[SCALING]) * rank  # declared an integer, used as a number
    helper = PEFTHelper(r=rank, lora_alpha=alpha, target_modules=[])
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    adapter = LoRAModel.from_lora_tensors(
        ADAPTER_ID,
        dict(pairs),
        helper,
        device="cpu",
        dtype=manager.lora_config.lora_dtype,
        weights_mapper=None if mapper is None else mapper.get_rename_mapper(),
    )
    # vLLM silently leaves out an adapter's layers that it has no place for.
    places = set(manager.modules)
    for name, parts in manager.packed_modules.items():
        places |= {name, *parts}
    nowhere = sorted(adapter.loras.keys() - places)
    # Layers of another stage of a pipeline have their places in the workers of that stage.
    if missing := [name for name in nowhere if not is_pp_missing_parameter(f"{name}.", model)]:
        raise WeightsError(
            f"vLLM has no place for the adapter of {', '.join(missing[:3])} ({len(missing)} in "
            "all): leave them out with lora.exclude_modules, or set lora.serve to merged"
        )
    return adapter


def swap_adapter(model: torch.nn.Module, adapter: LoRAModel) -> None:
    """Serve another adapter from the next step on.

    An exception leaves the model unusable: end the process after it.
    """
    manager: Any = model.lora_manager

    def serve() -> None:
        manager.add_adapter(adapter)
        manager.activate_adapter(ADAPTER_ID)
        # Requests name the adapter by its number, which stays, so vLLM would see no change.
        manager._last_mapping = None

    def remove_all() -> None:
        type(manager).remove_all_adapters(manager)
        serve()

    manager.remove_adapter(ADAPTER_ID)
    serve()
    # At the end of each update vLLM drops all adapters, made for earlier weights, and would load
    # the first one again from its folder.
    manager.remove_all_adapters = remove_all


def swap_weights(
    model: torch.nn.Module, model_config: Any, device: torch.device, tensors: Mapping[str, Tensor]
) -> None:
    """Load `tensors` (a checkpoint's names) into the running model. Its loader takes what this
    worker has: parts of tensors, the layers of a stage, and whole experts; it skips the others.

    An exception leaves the model unusable: check the tensors before, end the process after.
    """
    # On a CPU, linear weights are packed and their parameters emptied, so that a plain load_weights
    # fails: the layerwise reload restores, loads and packs again.
    initialize_layerwise_reload(model)
    model.load_weights(tensors.items())  # type: ignore[operator]
    finalize_layerwise_reload(model, model_config)
    _own(model, tensors)
    if device.type == "cpu":
        _repack_tied_heads(model)
        _repack_experts(model)
    else:
        torch.accelerator.synchronize()


def _own(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors that a loader has put into the model itself instead of copying them: their
    memory is a version's file, which is overwritten later."""
    staged = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    for held in (*model.parameters(), *model.buffers()):
        if held.untyped_storage().data_ptr() in staged:
            held.data = held.data.clone()


def _repack_experts(model: torch.nn.Module) -> None:
    """Pack experts: vLLM 0.32 on a CPU packs them only when it loads them first. After a reload its
    kernel would read the plain numbers as packed ones, without an error.
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
