"""The section `lora`, which this extension adds to the configuration: the training of a low-rank
adapter with frozen base weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core import AdapterKeys, ConfigError, Section, Sections, install_command

if TYPE_CHECKING:
    from agentgym_rl.config import Config
    from agentgym_rl.core.model_folder import Shapes


_EXPERTS = re.compile(r"(?P<module>.*\.experts)(?:\.\d+)?\.(?P<leaf>\w+)(?:\.weight)?$")
_LEAVES = {
    **dict.fromkeys(("gate_up_proj", "gate_proj", "up_proj", "w1", "w3"), "gate_up_proj"),
    **dict.fromkeys(("down_proj", "w2"), "down_proj"),
}
"""The stacked parameters of experts, by the names of tensors in models' folders."""
_GATES = {"up_proj": "gate_proj", "w3": "w1"}
_ROUTER = re.compile(r"\.(gate|router)(\.|$)")


class LoraConfig(AdapterKeys):
    """The LoRA of Hu et al. 2021 (https://arxiv.org/abs/2106.09685), with peft and its names."""

    place: ClassVar[str] = "lora"
    absent: ClassVar[Mapping[str, str]] = {
        "dropout": "it would give a token another log-prob each time, and ratios compare them",
    }

    rank: int = Field(default=0, ge=0)
    """The rank of the matrices added to each linear layer (peft's `r`); 0: none, all weights
    train."""
    alpha: float = Field(default=32.0, gt=0)
    """The numerator of the matrices' scale, alpha / rank (peft's `lora_alpha`)."""
    use_rslora: bool = False
    """The switch to the scale alpha / √rank."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """The names of the layers, like q_proj, and of the matrices of experts, experts.gate_up_proj
    and experts.down_proj; `all-linear`: all linear layers of the blocks, and all experts."""
    exclude_modules: tuple[str, ...] = ()
    """The names of layers that get no adapter in any case; `experts`: those of all experts."""
    serve: Literal["merged", "adapter"] = "merged"
    """The weights that engines sample with. `merged`: each version is merged into the engine's
    weights. `adapter` (vLLM, SGLang): the engine keeps its base and computes the adapter beside it,
    so an update replaces the adapter alone, but every token costs two more small products."""

    @property
    def adapter_rank(self) -> int:
        return self.rank

    @property
    def title(self) -> str:
        return f"lora.rank {self.rank}"

    @property
    def is_served(self) -> bool:
        return self.serve == "adapter"

    def served_layers(self, model_dir: Path) -> list[str]:
        from agentgym_rl.core import tensor_heads

        targets, heads = self.targets, tensor_heads(model_dir)
        if any(self._stack(name) for name in heads):
            raise ConfigError(
                f"lora.serve 'adapter': {model_dir} has experts, which get adapters, and engines "
                "compute only those of linear layers beside their base; use "
                "--lora.exclude_modules=experts, or set lora.serve to merged"
            )
        layers = [
            name.removesuffix(".weight")
            for name, head in sorted(heads.items())
            if re.search(r"\.\d+\..*_proj\.weight$", name) and len(head.shape) == 2
            if ".experts." not in name
            if not targets or name.split(".")[-2] in targets
        ]
        if not layers:
            raise ConfigError(
                f"lora.serve 'adapter': {model_dir} has no linear layer named like q_proj among "
                f"lora.target_modules {self.target_modules!r}; set lora.serve to merged"
            )
        return layers

    def matrix_shapes(self, shapes: Shapes, *, vocabulary: int) -> Shapes:
        found: dict[str, tuple[int, ...]] = {}
        for name, shape in shapes.items():
            layer, of_experts = name.removesuffix(".weight"), _EXPERTS.match(name)
            is_hidden = len(shape) == 2 and shape[0] != vocabulary
            if of_experts:
                if not self._stack(name):
                    continue
            elif not is_hidden or _ROUTER.search(layer) or not self.takes(layer):
                continue
            *count, rows, columns = shape
            # An expert's first two matrices are one parameter, with one A.
            leaf = of_experts["leaf"] if of_experts else ""
            gate = _GATES.get(leaf)
            if gate is None or name.replace(leaf, gate) not in shapes:
                found[f"{layer}.lora_A"] = (*count, self.rank, columns)
            found[f"{layer}.lora_B"] = (*count, rows, self.rank)
        return found

    def _stack(self, name: str) -> str:
        """Return the name of the stacked parameter of experts that a tensor of a model's folder is
        a part of, if it gets an adapter; "" for all others."""
        found = _EXPERTS.match(name)
        leaf = _LEAVES.get(found["leaf"], "") if found else ""
        its = f"{found['module']}.{leaf}" if found and leaf else ""
        return its if its and self.takes(its) else ""

    def conflicts(self, config: Sections) -> Iterator[str]:
        from agentgym_rl.config import ENGINES, EngineConfig

        yield from super().conflicts(config)
        engine = config.of(EngineConfig)
        if self.is_served and not engine.serves_adapters:
            kinds = ENGINES.members.items()
            others = " or ".join(repr(name) for name, it in kinds if it.section.serves_adapters)
            yield (
                f"lora.serve 'adapter' needs engine.type {others}; the {engine.type} engine merges "
                "each version into its weights: set lora.serve to merged"
            )

    @field_validator("target_modules", "exclude_modules", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """Split a text like `--lora.target_modules=q_proj,v_proj` into a list."""
        if not isinstance(value, str) or value == "all-linear":
            return value
        return tuple(filter(None, value.split(",")))

    @model_validator(mode="after")
    def _consistent(self) -> LoraConfig:
        if not self.target_modules:
            raise ValueError("target_modules is empty: name layers, or use all-linear")
        for name in (*self.exclude_modules, *self.targets):
            if not re.fullmatch(r"[\w.]+", name):
                raise ValueError(
                    f"{name!r} is not a layer name; expected one like q_proj, or self_attn.q_proj"
                )
        unused = [name for name in self.model_fields_set if self._differs(name)]
        if not self.rank and unused:
            raise ValueError(
                f"{', '.join(sorted(unused))} has no effect without a rank; "
                "set lora.rank, for example to 16"
            )
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the names of the layers; empty: all linear ones."""
        return () if self.target_modules == "all-linear" else self.target_modules

    def takes(self, name: str) -> bool:
        """Return whether a layer, or a parameter of a module of experts, gets an adapter."""
        module = name.rpartition(".")[0]
        names = (name, module) if module.endswith("experts") else (name,)
        excluded = any(is_one(it, self.exclude_modules) for it in names)
        return not excluded and (not self.targets or is_one(name, self.targets))

    def _differs(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default


def is_one(layer: str, names: Sequence[str]) -> bool:
    """Return whether a layer has one of the names, as its complete name or the end of it."""
    return any(f".{layer}".endswith(f".{name}") for name in names)


class LoraKeys(Section):
    """The section `lora`, added to the configuration."""

    after = "trainer"

    lora: LoraConfig = LoraConfig()


def check_peft(config: Config, trains: bool) -> Iterator[str]:
    """Yield an error if the run trains an adapter, and peft is missing."""
    rank = config.of(LoraConfig).rank
    if trains and rank and find_spec("peft") is None:
        yield f"lora.rank {rank} needs peft, which is missing: {install_command('lora')}"
