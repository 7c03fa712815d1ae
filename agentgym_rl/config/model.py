"""The sections `model`, the policy; `init`, its preparation before the first batch; and `lora`, the
training of a low-rank adapter with frozen base weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agentgym_rl.core import Section, Sections

from .algo import AlgoConfig


class ModelConfig(Section):
    """The policy that is trained."""

    path: str = "bundled"
    """The model: "bundled" (the tiny model of this package that was warmed up for the environment;
    or by name: bundled/math, bundled/tools, bundled/frozenlake, bundled/code, bundled/bugs,
    bundled/tictactoe, bundled/agents), a local folder, or a Hugging Face id; with engine.type
    "openai", the model's name at that URL, with "litellm" PROVIDER/NAME."""
    revision: str | None = None
    """The commit, tag or branch of a Hugging Face id."""


class LoraConfig(Section):
    """The LoRA of Hu et al. 2021 (https://arxiv.org/abs/2106.09685), with peft and its names."""

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

    def conflicts(self, config: Sections) -> Iterator[str]:
        for other in config.of(AlgoConfig).other_models:
            if self.rank and other.moved_by:
                yield (
                    f"{other.moved_by} with lora.rank {self.rank}: the {other.role} has no "
                    "adapter, so it cannot move to the policy; leave one of them out"
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
        return () if self.target_modules == "all-linear" else self.target_modules

    def _differs(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default
