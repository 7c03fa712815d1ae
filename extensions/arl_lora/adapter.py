"""LoRA through peft: an adapter on the linear layers of a model with frozen weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentgym_rl.core import ConfigError, TrainerError, WeightsError, install_command
from agentgym_rl.trainer import Adapter
from agentgym_rl.weights import peft_tensors, read_base, save_tensors

from .keys import LoraConfig

_NAME = "default"
"""The default adapter name of peft."""


class LoraAdapter(Adapter):
    """The LoRA of a model, with peft."""

    def __init__(self, layers: Mapping[str, Any], settings: Any, model_dir: Path):
        super().__init__(model_dir, scaling=next(iter(layers.values())).scaling[_NAME])
        self._layers = dict(layers)
        self._settings = settings

    @classmethod
    def on(cls, model: Any, keys: LoraConfig, *, model_dir: Path, seed: int) -> LoraAdapter:
        try:
            from peft import LoraConfig as Settings  # slow: only for runs with an adapter
            from peft import inject_adapter_in_model
            from peft.tuners.lora import LoraLayer
        except ImportError as error:
            raise ConfigError(
                f"lora.rank {keys.rank} needs peft ({error}): {install_command('lora')}"
            ) from error
        targets = keys.target_modules
        settings: Any = Settings(
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(model_dir),
            r=keys.rank,
            lora_alpha=keys.alpha,  # type: ignore[arg-type] - any number works: peft divides by it
            use_rslora=keys.use_rslora,
            target_modules=targets if isinstance(targets, str) else list(targets),
            exclude_modules=list(keys.exclude_modules) or None,
        )
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about layers that are refused below
                torch.manual_seed(seed)
                inject_adapter_in_model(settings, model)
            files = read_base(model_dir).keys()
        except (ValueError, WeightsError) as error:
            raise TrainerError(f"lora: {error} (lora.exclude_modules leaves layers out)") from error
        layers = {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}
        _check_layers(layers, model, files)
        return cls(layers, settings, model_dir)

    def pairs(self, parameters: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        def pair(name: str) -> tuple[Tensor, Tensor]:
            a, b = (parameters[f"{name}.lora_{kind}.{_NAME}.weight"] for kind in "AB")
            return a, b

        return {name: pair(name) for name in self._layers}

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        self._settings.save_pretrained(folder)
        save_tensors(peft_tensors(state), folder / "adapter_model.safetensors")

    @contextmanager
    def off(self) -> Iterator[None]:
        # peft's own switch would turn off the gradients of parameters, which FSDP does not expect.
        # A scale of 0 leaves every bit of the base's output as it was.
        for layer in self._layers.values():
            layer.set_scale(_NAME, 0.0)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.set_scale(_NAME, 1.0)


def _check_layers(layers: Mapping[str, Any], model: Any, files: Collection[str]) -> None:
    """Check that `weights.adapter.merged` would give what each layer computes, with the tensors in
    `files`; else raise TrainerError, with the setting that leaves out what cannot be merged."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    odd: dict[str, str] = {}
    for name, layer in layers.items():
        base = layer.get_base_layer()
        if layer in ends:
            odd[name] = "an embedding or the output layer"
        elif type(base) is not nn.Linear:
            odd[name] = f"a {type(base).__name__}"
        elif f"{name}.weight" not in files:
            odd[name] = "under another name in the model's folder"
    if odd:
        name, kind = next(iter(odd.items()))
        rest = _leaves(layers) - _leaves(layers, beside=odd)
        remedy = f"--lora.target_modules={','.join(sorted(rest))}, or " if rest else ""
        raise TrainerError(
            f"lora: {name} is {kind}, as are {len(odd) - 1} more of {len(layers)} layers. Engines "
            "can merge an adapter only into linear layers of the model's blocks, by their names in "
            f"the folder. Remedy: {remedy}lora.rank 0"
        )


def _leaves(names: Iterable[str], beside: Iterable[str] | None = None) -> set[str]:
    """Return the last parts of the names; with `beside`, only of names in the same part of a block
    as those: peft would take projections next to fused experts for the experts' own."""
    parts = None if beside is None else {_part(name) for name in beside}
    return {name.rpartition(".")[2] for name in names if parts is None or _part(name) in parts}


def _part(name: str) -> str:
    """Return the name of the part of a block that a layer is in, like model.layers.0.mlp."""
    found = re.match(r".*?\.\d+\.[^.]+", name)
    return found[0] if found else name
