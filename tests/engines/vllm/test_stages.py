"""An adapter in a worker of a pipeline stage, which has only some layers (no vLLM needed)."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from agentgym_rl.core import WeightsError
from agentgym_rl.storage.weights_folder import SCALING
from tests.kit.cases import cases

_LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj")


class _Lora:
    """What vLLM makes of the tensors of an adapter: all layers, whatever the worker has."""

    @staticmethod
    def from_lora_tensors(number: int, tensors: dict[str, Any], *_: Any, **__: Any) -> Any:
        layers = {name.partition(".lora_")[0].removeprefix("base_model.model.") for name in tensors}
        return types.SimpleNamespace(loras=dict.fromkeys(layers))


def _is_missing(name: str, model: Any) -> bool:
    """vLLM's own rule: names begin with that of a layer of another stage, and a dot."""
    return any(name.startswith(layer) for layer in model.of_other_stages)


@pytest.fixture
def swap(monkeypatch):
    """Our module of swaps, with a stand-in for what it imports from vLLM."""
    executor = "vllm.model_executor"
    parts: dict[str, dict[str, Any]] = {
        "vllm.lora.lora_model": {"LoRAModel": _Lora},
        "vllm.lora.peft_helper": {"PEFTHelper": types.SimpleNamespace},
        f"{executor}.layers.utils": {"dispatch_cpu_unquantized_gemm": None},
        f"{executor}.layers.vocab_parallel_embedding": {"ParallelLMHead": None},
        f"{executor}.model_loader.reload": dict.fromkeys(
            ("finalize_layerwise_reload", "initialize_layerwise_reload")
        ),
        f"{executor}.models.utils": {"is_pp_missing_parameter": _is_missing},
    }
    packages = {
        ".".join(name.split(".")[:n]) for name in parts for n in range(1, name.count(".") + 1)
    }
    for name in (*packages, *parts):
        module = types.ModuleType(name)
        vars(module).update(parts.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "arl_vllm.swap", raising=False)
    module = importlib.import_module("arl_vllm.swap")
    monkeypatch.delitem(sys.modules, "arl_vllm.swap")
    return module


def adapter() -> dict[str, torch.Tensor]:
    pairs = {}
    for layer in _LAYERS:
        pairs[f"base_model.model.{layer}.lora_A.weight"] = torch.ones(2, 4)
        pairs[f"base_model.model.{layer}.lora_B.weight"] = torch.ones(4, 2)
    return {SCALING: torch.from_numpy(np.ones(1)), **pairs}


def worker(*, has: tuple[str, ...], of_other_stages: tuple[str, ...]) -> Any:
    config = types.SimpleNamespace(max_lora_rank=8, lora_dtype=torch.float32)
    manager = types.SimpleNamespace(
        lora_config=config, modules=dict.fromkeys(has), packed_modules={}
    )
    return types.SimpleNamespace(lora_manager=manager, of_other_stages=of_other_stages)


@cases("stage", [0, 1])
def test_a_stage_takes_an_adapter_with_layers_of_another_one(swap, stage):
    other = f"model.layers.{1 - stage}."
    made = swap.loaded_adapter(worker(has=(_LAYERS[stage],), of_other_stages=(other,)), adapter())
    assert made.loras.keys() == {*_LAYERS}


def test_a_layer_without_a_place_in_its_own_stage_is_refused(swap):
    first = worker(has=(), of_other_stages=("model.layers.1.",))
    with pytest.raises(WeightsError, match=r"adapter of model.layers.0.self_attn.q_proj \(1 in"):
        swap.loaded_adapter(first, adapter())
