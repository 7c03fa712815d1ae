"""The section `init`, which this extension adds to the configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from agentgym_rl.core import Fitted, Section

if TYPE_CHECKING:  # the configuration is made of these keys
    from agentgym_rl.config import Config

FOLDER = "init"
"""The folder of the warm-up in a run's folder, with the following files and folders."""
ROWS, STEPS, MODEL, CHECKPOINTS = "rows.msgpack", "steps.jsonl", "model", "checkpoints"

_RATES = ((20e6, 5e-4), (1e9, 1e-4), (10e9, 2e-5), (math.inf, 1e-5))
"""The pairs of a number of parameters and the learning rate for models with fewer."""


class InitConfig(Section):
    """The start of the policy: the unchanged model, or the model after a supervised warm-up."""

    method: Literal["none", "sft"] = "none"
    """The method; `sft`: the model first learns the assistant's turns of `data`."""
    data: str = ""
    """A JSONL file in the format of `arl export --sft`: `messages` and `tools`, or `input_ids`
    and `labels`. It must not hold episodes of tasks that the run evaluates."""
    epochs: int = Field(default=1, ge=1)
    """The number of passes over the data."""
    rows_per_step: int = Field(default=32, ge=1)
    """The number of conversations per optimizer step."""
    learning_rate: Fitted[float] = Field(default=5e-4, gt=0)
    """The peak learning rate; the schedule is the trainer's."""

    @model_validator(mode="after")
    def _data_for_sft(self) -> InitConfig:
        if (self.method == "sft") != bool(self.data):
            raise ValueError(
                "init.method 'sft' and init.data go together: --init sft --data FILE (JSONL, "
                "such as `arl export --sft RUN --out FILE` writes)"
            )
        return self

    def fitted_to(self, size: float) -> Mapping[str, tuple[Any, str]]:
        if self.method != "sft":
            return {}
        rate = next(rate for below, rate in _RATES if size < below)
        return {"learning_rate": (rate, "the warm-up's, for this size")}

    def conflicts(self, config: Config) -> Iterator[str]:
        cluster = config.cluster
        if self.method != "none" and not cluster.kind.here:
            yield (
                f"cluster.type {cluster.type!r} has no warm-up (init.method {self.method!r}): make "
                "it on one machine, and train its RUN/init/model (--model)"
            )


class InitKeys(Section):
    """The section `init`, added to the configuration."""

    after = "model"

    init: InitConfig = InitConfig()
