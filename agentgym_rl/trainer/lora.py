"""LoRA through peft: an adapter on the linear layers of a model with frozen weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentgym_rl.config import LoraConfig
from agentgym_rl.core.errors import ConfigError, TrainerError, WeightsError
from agentgym_rl.weights import adapter as version
from agentgym_rl.weights.adapter import base_checksum, merged, read_base

_NAME = "default"
"""The default adapter name of peft."""


class Adapter:
    """An adapter of a model; `Adapter.on` makes it, before the model is sharded."""

    def __init__(self, layers: Mapping[str, Any], settings: Any, model_dir: Path):
        self._layers = dict(layers)
        self.settings = settings
        """The settings in peft's own class, for its `adapter_config.json`."""
        self._model_dir = model_dir
        self.base = base_checksum(model_dir)

    @classmethod
    def on(cls, model: Any, config: LoraConfig, *, model_dir: Path, seed: int) -> Adapter:
        """Freeze `model`, loaded from `model_dir`, and add an adapter to it that changes no output
        yet; with one `seed`, the adapter is the same on every rank.

        Raises:
            ConfigError: peft is not installed.
            TrainerError: these layers cannot be adapted, or engines could not merge them later.
        """
        try:
            from peft import LoraConfig as Settings  # slow: only for runs with an adapter
            from peft import inject_adapter_in_model
            from peft.tuners.lora import LoraLayer
        except ImportError as error:
            raise ConfigError(
                f"lora.rank {config.rank} needs peft ({error}): pip install 'agentgym-rl[lora]'"
            ) from error
        targets = config.target_modules
        settings: Any = Settings(
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(model_dir),
            r=config.rank,
            lora_alpha=config.alpha,  # type: ignore[arg-type] - any number works: peft divides by it
            use_rslora=config.use_rslora,
            target_modules=targets if isinstance(targets, str) else list(targets),
            exclude_modules=list(config.exclude_modules) or None,
        )
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about layers that are refused below
                torch.manual_seed(seed)
                inject_adapter_in_model(settings, model)
            files = read_base(model_dir).keys()
        except (ValueError, WeightsError) as error:
            raise TrainerError(f"lora: {error}") from error
        layers = {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}
        _check_layers(layers, model)
        if lacking := sorted({f"{name}.weight" for name in layers} - files):
            raise TrainerError(
                f"lora: {type(model).__name__} has {lacking[0]}, and no file of {model_dir} has a "
                "tensor of that name: engines could not merge an adapter. Leave such layers out "
                "(lora.exclude_modules), or use lora.rank 0"
            )
        return cls(layers, settings, model_dir)

    def version(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the adapter in the format that engines load; `parameters` of the model,
        unsharded."""

        def pair(name: str) -> tuple[Tensor, Tensor]:
            a, b = (parameters[f"{name}.lora_{kind}.{_NAME}.weight"] for kind in "AB")
            return a, b

        scaling = next(iter(self._layers.values())).scaling[_NAME]
        pairs = {name: pair(name) for name in self._layers}
        return version.named(pairs, scaling=scaling, base=self.base)

    def merged(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights of the model with the adapter `state`, a `version`, merged in; float32
        or better, except integers."""
        return {
            name: tensor.to(torch.promote_types(tensor.dtype, torch.float32))
            if tensor.is_floating_point()
            else tensor
            for name, tensor in merged(state, self._model_dir).items()
        }

    @contextmanager
    def off(self) -> Iterator[None]:
        """Hold the adapter off: the model computes as its base meanwhile."""
        # peft's own switch would make parameters not require gradients, without FSDP's knowledge. A
        # scale of 0 leaves every bit of the base's output as it was.
        for layer in self._layers.values():
            layer.set_scale(_NAME, 0.0)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.set_scale(_NAME, 1.0)


def _check_layers(layers: Mapping[str, Any], model: Any) -> None:
    """Check that `weights.adapter.merged` would give what each layer computes; else raise
    TrainerError."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    for name, layer in layers.items():
        base = layer.get_base_layer()
        if type(base) is not nn.Linear or layer in ends:
            kind = (
                "an embedding or the output layer" if layer in ends else f"a {type(base).__name__}"
            )
            raise TrainerError(
                f"lora.target_modules: {name} is {kind}; supported are linear layers of the "
                "model's blocks"
            )
