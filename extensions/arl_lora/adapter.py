"""LoRA: an adapter on the linear layers of a model with frozen weights, through peft, and on its
experts."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentgym_rl.algo import is_experts
from agentgym_rl.core import ConfigError, TrainerError, WeightsError, install_command
from agentgym_rl.storage import MATRIX_A, MATRIX_B
from agentgym_rl.storage.weights_folder import PREFIX
from agentgym_rl.trainer import Adapter
from agentgym_rl.weights import is_linear, peft_tensors, read_base, save_tensors

from .experts import ExpertAdapter, Stack, stacks
from .keys import LoraConfig, is_one

_log = logging.getLogger(__name__)

_NAME = "default"
"""The default adapter name of peft."""


class LoraAdapter(Adapter):
    """The LoRA of a model: with peft on its linear layers, and on the stacked parameters of its
    experts."""

    def __init__(
        self,
        layers: Mapping[str, Any],
        stacks: Sequence[Stack],
        settings: Any,
        model_dir: Path,
        *,
        scaling: float,
    ) -> None:
        super().__init__(model_dir, scaling=scaling)
        self._layers, self._stacks, self._settings = dict(layers), stacks, settings
        leaves: dict[Any, set[str]] = {}
        for stack in stacks:
            leaves.setdefault(stack.experts, set()).add(stack.leaf)
        self._experts = [ExpertAdapter(it, frozenset(of), scaling) for it, of in leaves.items()]

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
        names, stacks = _chosen(model, keys, model_dir)
        settings: Any = Settings(
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(model_dir),
            r=keys.rank,
            lora_alpha=keys.alpha,  # type: ignore[arg-type] - any number works: peft divides by it
            use_rslora=keys.use_rslora,
            target_modules=targets if isinstance(targets, str) else list(targets),
            exclude_modules=list(keys.exclude_modules) or None,
        )
        given: Any = {}
        if names is not None:
            # peft would take projections of earlier releases of transformers, by their names, for
            # those of experts: it gets the layers themselves.
            given = {"state_dict": {f"{name}.lora_A.weight": None for name in names}}
            settings.target_modules, settings.exclude_modules = {"no layer's name"}, None
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about layers that are refused below
                torch.manual_seed(seed)
                model.requires_grad_(False)
                if names is None or names:
                    inject_adapter_in_model(settings, model, **given)
                for stack in stacks:
                    stack.add(keys.rank)
            files = read_base(model_dir).keys()
        except (ValueError, WeightsError) as error:
            raise TrainerError(f"lora: {error} (lora.exclude_modules leaves layers out)") from error
        if names is not None:
            settings.target_modules = set(names)
            settings.target_parameters = [stack.name for stack in stacks]
        layers = {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}
        _check_layers(layers, model, files, {f"experts.{stack.leaf}" for stack in stacks})
        scaling = keys.alpha / (keys.rank**0.5 if keys.use_rslora else keys.rank)
        return cls(layers, stacks, settings, model_dir, scaling=scaling)

    def pairs(self, parameters: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        def pair(name: str) -> tuple[Tensor, Tensor]:
            a, b = (parameters[f"{name}.lora_{kind}.{_NAME}.weight"] for kind in "AB")
            return a, b

        found = {name: pair(name) for name in self._layers}
        for stack in self._stacks:
            a, b = stack.matrices(parameters)
            found |= {part.layer: part.pair(a, b) for part in stack.parts}
        return found

    def save(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        self._settings.save_pretrained(folder)
        tensors, inside = peft_tensors(state), set[str]()

        def taken(layer: str) -> tuple[Tensor, Tensor]:
            return tensors.pop(f"{PREFIX}{layer}{MATRIX_A}"), tensors.pop(
                f"{PREFIX}{layer}{MATRIX_B}"
            )

        for stack in reversed(self._stacks):  # peft's wrapper of the last parameter is the outer
            pairs = {part.layer: taken(part.layer) for part in stack.parts}
            module = f"{PREFIX}{stack.name.rpartition('.')[0]}"
            name = f"{module}.base_layer" if module in inside else module
            inside.add(module)
            for end, matrix in zip((MATRIX_A, MATRIX_B), stack.saved(pairs), strict=True):
                tensors[name + end] = matrix
        save_tensors(tensors, folder / "adapter_model.safetensors")

    @contextmanager
    def off(self) -> Iterator[None]:
        # peft's own switch would turn off the gradients of parameters, which FSDP does not expect.
        # A scale of 0 leaves every bit of the base's output as it was.
        self._switch(on=False)
        try:
            yield
        finally:
            self._switch(on=True)

    def _switch(self, *, on: bool) -> None:
        for layer in self._layers.values():
            layer.set_scale(_NAME, float(on))
        for experts in self._experts:
            experts.is_on = on


def _chosen(model: Any, keys: LoraConfig, model_dir: Path) -> tuple[list[str] | None, list[Stack]]:
    """Return the linear layers and the parameters of experts that the keys name; None in place of
    layers: the model has no experts, and peft chooses.

    Raises:
        TrainerError: a name is that of neither; the named experts cannot be adapted.
    """
    if not any(is_experts(it) for it in model.modules()):
        return None, []
    targets = keys.targets
    head = model.get_output_embeddings()
    every = {
        name: it
        for name, it in model.named_modules()
        if (isinstance(it, nn.Linear) if targets else is_linear(it)) and it is not head
    }
    names = [name for name in every if keys.takes(name)]
    try:
        found = list(stacks(model, model_dir))
        why = ""
    except TrainerError as error:
        found, why = [], str(error)
    chosen = [it for it in found if keys.takes(it.name)]
    known = [*every, *(it.name for it in found)]
    if lost := [it for it in targets if not any(is_one(name, (it,)) for name in known)]:
        more = f"; its experts take no adapter: {why}" if why else ""
        of = sorted({f"experts.{it.leaf}" for it in found})
        more = f"; those of its experts are {', '.join(of)}" if of else more
        raise TrainerError(
            f"lora: target modules {', '.join(lost)} not found in {type(model).__name__}{more}"
        )
    if why and not targets:
        _log.warning("lora: no adapter of the experts of %s: %s", type(model).__name__, why)
    if not names and not chosen:
        raise TrainerError(
            f"lora.exclude_modules leaves no layer of {type(model).__name__} to adapt"
        )
    return names, chosen


def _check_layers(
    layers: Mapping[str, Any], model: Any, files: Collection[str], others: Set[str]
) -> None:
    """Check that `weights.adapter.merged` would give what each layer computes, with the tensors in
    `files`; else raise TrainerError, with the setting that leaves out what cannot be merged, and
    keeps `others`."""
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
        named = ",".join(sorted(rest | others))
        remedy = f"--lora.target_modules={named}, or " if named else ""
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
