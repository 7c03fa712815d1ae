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
    """The names of the layers, like q_proj; `all-linear`: all linear layers of the blocks."""
    exclude_modules: tuple[str, ...] = ()
    """The names of layers that get no adapter in any case."""
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

        targets = self._targets()
        layers = [
            name.removesuffix(".weight")
            for name, head in sorted(tensor_heads(model_dir).items())
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
        targets, found = self._targets(), dict[str, tuple[int, ...]]()
        for name, shape in shapes.items():
            layer = name.removesuffix(".weight")
            is_hidden = len(shape) == 2 and shape[0] != vocabulary
            named = not targets or _is_one(layer, targets)
            if is_hidden and named and not _is_one(layer, self.exclude_modules):
                found[f"{layer}.lora_A"] = (self.rank, shape[1])
                found[f"{layer}.lora_B"] = (shape[0], self.rank)
        return found

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
        for name in (*self.exclude_modules, *self._targets()):
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

    def _targets(self) -> tuple[str, ...]:
        """Return the names of the layers; empty: all linear ones."""
        return () if self.target_modules == "all-linear" else self.target_modules

    def _differs(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default


def _is_one(layer: str, names: Sequence[str]) -> bool:
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
