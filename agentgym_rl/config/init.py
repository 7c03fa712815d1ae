"""`init`: what happens to the model before the first batch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

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
