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

from agentgym_rl.config import LoraConfig
from agentgym_rl.core import ConfigError, TrainerError, WeightsError, base_checksum
from agentgym_rl.weights import LazyTensors, read_base
from agentgym_rl.weights import adapter as version
from agentgym_rl.weights.adapter import merged

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
            raise TrainerError(f"lora: {error} (lora.exclude_modules leaves layers out)") from error
        layers = {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}
        _check_layers(layers, model, files)
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

    def merged(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return all weights of the model with the adapter `state`, a `version`, merged in; float32
        or better, except integers. Each is computed when it is read."""
        whole = merged(state, self._model_dir)

        def read(name: str) -> Tensor:
            tensor = whole[name]
            if not tensor.is_floating_point():
                return tensor
            return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

        return LazyTensors(whole, read)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Disable the adapter while the context is open: the model computes as its base."""
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
