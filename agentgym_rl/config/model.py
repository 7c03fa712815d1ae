"""`init`: what happens to the model before the first batch.

`lora`: train a low-rank adapter beside frozen weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from .section import Section


class InitConfig(Section):
    """Where the policy begins: with the model as it is, or after a supervised warm-up."""

    method: Literal["none", "sft"] = "none"
    """`sft`: the model first learns the assistant's turns of `data`."""
    data: str = ""
    """JSONL of `arl export --sft`'s form: `messages` and `tools`, or `input_ids` and `labels`."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the data."""
    rows_per_step: int = Field(default=32, ge=1)
    """Conversations an optimizer step."""
    learning_rate: float = Field(default=5e-4, gt=0)
    """At its height; the schedule is the trainer's."""

    @model_validator(mode="after")
    def _data_for_sft(self) -> InitConfig:
        if (self.method == "sft") != bool(self.data):
            raise ValueError(
                "init.method 'sft' and init.data go together: --init sft --data FILE (JSONL, "
                "such as `arl export --sft RUN --out FILE` writes)"
            )
        return self


class LoraConfig(Section):
    """Hu et al. 2021 (https://arxiv.org/abs/2106.09685), through peft, by peft's names."""

    absent: ClassVar[Mapping[str, str]] = {
        "dropout": "it would give a token another log-prob each time, and ratios compare them",
    }

    rank: int = Field(default=0, ge=0)
    """Of the matrices added to each linear layer (peft's `r`); 0: none, all weights train."""
    alpha: float = Field(default=32.0, gt=0)
    """They count alpha / rank (peft's `lora_alpha`)."""
    use_rslora: bool = False
    """They count alpha / √rank."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the layers, like q_proj; `all-linear`: all of the model's blocks."""
    exclude_modules: tuple[str, ...] = ()
    """Names of layers that get none all the same."""

    @field_validator("target_modules", "exclude_modules", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """`--lora.target_modules=q_proj,v_proj` is a list too."""
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
                    f"{name!r} is no name of a layer; expected one like q_proj, or self_attn.q_proj"
                )
        unused = [name for name in self.model_fields_set if self._differs(name)]
        if not self.rank and unused:
            raise ValueError(
                f"{', '.join(sorted(unused))} without a rank: nothing is adapted; "
                "set lora.rank, 16 for one"
            )
        return self

    def _targets(self) -> tuple[str, ...]:
        return () if self.target_modules == "all-linear" else self.target_modules

    def _differs(self, name: str) -> bool:
        return getattr(self, name) != type(self).model_fields[name].default
