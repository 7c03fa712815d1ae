"""How fast the parts of a run are: a TOML file of its own, beside the run's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from agentgym_rl.config.file import load
from agentgym_rl.config.section import Section


class HardwareRates(Section):
    """What rates follow from where none are given: see `gpus.rates_of`."""

    gpu: str = ""
    """Name of a GPU that is known (`gpus.GPUS`); empty: there is none."""
    parameters: float = Field(default=0.0, ge=0)
    """Of the model."""
    kv_bytes_per_token: float = Field(default=0.0, ge=0)
    """Keys and values of a token; 0: estimated from the model's size."""
    decode_efficiency: float = Field(default=0.6, gt=0, le=1)
    """Share of the memory bandwidth that decoding reaches."""
    prefill_efficiency: float = Field(default=0.4, gt=0, le=1)
    """Share of the peak that prefills reach."""
    trainer_efficiency: float = Field(default=0.35, gt=0, le=1)
    """Share of the peak that the trainer's full micro-batches reach."""
    network_gb_per_s: float = Field(default=25.0, gt=0)
    """At which weights come to an engine."""


class EngineRates(Section):
    """A decode step of n requests, k tokens of context together, takes
    step_s + n x step_s_per_request + k x step_s_per_context_token."""

    step_s: float = Field(default=0.0, ge=0)
    step_s_per_request: float = Field(default=0.0, ge=0)
    step_s_per_context_token: float = Field(default=0.0, ge=0)
    prefill_s: float = Field(default=0.0, ge=0)
    """Of every prefill, whatever its length."""
    prefill_s_per_token: float = Field(default=0.0, ge=0)
    server_cores: float = Field(default=0.0, ge=0)
    """Processors that the engine's server keeps busy beside what computes, meanwhile."""
    prefix_cache: bool = True
    """Whether a turn's prompt costs only what was not in the turn before."""
    kv_tokens: int | None = Field(default=None, ge=1)
    """Tokens of context that an engine has memory for; unset: no limit but its slots."""


class TrainerRates(Section):
    """A pass over a micro-batch of n tokens takes microbatch_s + n x s_per_token."""

    forward_microbatch_s: float = Field(default=0.0, ge=0)
    forward_s_per_token: float = Field(default=0.0, ge=0)
    """Of a pass without gradients."""
    train_microbatch_s: float = Field(default=0.0, ge=0)
    train_s_per_token: float = Field(default=0.0, ge=0)
    """Of forward and backward."""
    optimizer_s: float = Field(default=0.0, ge=0)
    """Of an optimizer step."""
    between_s: float = Field(default=0.0, ge=0)
    """Of everything else in a batch."""


class WeightRates(Section):
    """A publication: gathered and staged while engines sample, then swapped."""

    stage_s: float = Field(default=0.0, ge=0)
    pause_s: float = Field(default=0.0, ge=0)
    """How long an engine samples nothing."""


class RolloutRates(Section):
    """What the rollout's process computes itself: gateway, agents, environments."""

    turn_s: float = Field(default=0.0, ge=0)
    """Of its processor, for each turn."""
    handover_s_per_episode: float = Field(default=0.0, ge=0)
    """The same for assembling a batch and handing it to the trainer."""


class LengthRates(Section):
    """Episodes that are drawn: replies are lognormal, and cut off at `rollout.max_tokens`."""

    prompt_tokens: int = Field(default=256, ge=1)
    reply_tokens: float = Field(default=512.0, gt=0)
    """Median length of a reply."""
    reply_sigma: float = Field(default=0.8, ge=0)
    """Of the lognormal distribution; 0: all are of `reply_tokens`."""
    task_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the (log-)variance that is the task's, and so the same for a group."""
    turns: float = Field(default=1.0, ge=1)
    """Mean number of turns (geometric above 1)."""
    tool_tokens: int = Field(default=0, ge=0)
    """Of what comes between two turns."""
    tool_s: float = Field(default=0.0, ge=0)
    """Median time of what comes between two turns."""
    tool_sigma: float = Field(default=0.0, ge=0)
    """Of its lognormal distribution."""
    learning_share: float = Field(default=1.0, ge=0, le=1)
    """Share of groups whose rewards differ: the others take no optimizer pass."""


class Rates(Section):
    """Everything that `arl plan` must know and the run's configuration does not say."""

    lengths_of: Literal["drawn", "run"] = "drawn"
    """`run`: episodes are those of the run `calibrated_on`."""
    calibrated_on: str = ""
    """The run that was measured."""
    cores: float | None = Field(default=None, gt=0)
    """Processors that engines, trainer and rollout share; unset: none is ever short of one."""
    hardware: HardwareRates = HardwareRates()
    engine: EngineRates = EngineRates()
    trainer: TrainerRates = TrainerRates()
    weights: WeightRates = WeightRates()
    rollout: RolloutRates = RolloutRates()
    lengths: LengthRates = LengthRates()

    @model_validator(mode="after")
    def _consistent(self) -> Rates:
        if self.lengths_of == "run" and not self.calibrated_on:
            raise ValueError("lengths_of 'run' needs calibrated_on: the folder of a run")
        return self


def load_rates(path: Path) -> Rates:
    """The rates of a TOML file.

    Raises:
        ConfigError: it cannot be read, has a key that is unknown, or a bad value.
    """
    return load(Rates, path, {})
