"""The speeds of the parts of a run: a TOML file besides the run's configuration.

The rates of a model on a GPU can be estimated: the limits of its data sheet times the usual
efficiency. Use them to compare configurations; measure before you rely on absolute times.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from agentgym_rl.config.file import load
from agentgym_rl.core import ConfigError, Section, near_match


class HardwareRates(Section):
    """The hardware and model size from which missing rates are estimated: see `rates_of`."""

    gpu: str = ""
    """The name of a known GPU (`GPUS`); empty: there is none."""
    parameters: float = Field(default=0.0, ge=0)
    """The number of parameters of the model."""
    kv_bytes_per_token: float = Field(default=0.0, ge=0)
    """The bytes of a token's keys and values; 0: estimated from the model's size."""
    decode_efficiency: float = Field(default=0.6, gt=0, le=1)
    """The share of the memory bandwidth that decoding reaches."""
    prefill_efficiency: float = Field(default=0.4, gt=0, le=1)
    """The share of the peak that prefills reach."""
    trainer_efficiency: float = Field(default=0.35, gt=0, le=1)
    """The share of the peak that the trainer's full micro-batches reach."""
    network_gb_per_s: float = Field(default=25.0, gt=0)
    """The rate at which an engine receives weights, in GB/s."""


class EngineRates(Section):
    """The rates of an engine: a decode step of n requests with k tokens of context in all takes
    step_s + n x step_s_per_request + k x step_s_per_context_token."""

    step_s: float = Field(default=0.0, ge=0)
    step_s_per_request: float = Field(default=0.0, ge=0)
    step_s_per_context_token: float = Field(default=0.0, ge=0)
    prefill_s: float = Field(default=0.0, ge=0)
    """The seconds of every prefill, whatever its length."""
    prefill_s_per_token: float = Field(default=0.0, ge=0)
    server_cores: float = Field(default=0.0, ge=0)
    """The processors that the engine's server keeps busy, besides those that compute, meanwhile."""
    prefix_cache: bool = True
    """The prefix cache: with it, a turn's prompt costs only the tokens after the turn before, and a
    group's prompt is computed once."""
    kv_tokens: int | None = Field(default=None, ge=1)
    """The tokens of context that fit into an engine's memory; unset: no limit but its slots."""


class TrainerRates(Section):
    """The rates of a trainer: a pass over a micro-batch of n tokens takes
    microbatch_s + n x s_per_token."""

    forward_microbatch_s: float = Field(default=0.0, ge=0)
    forward_s_per_token: float = Field(default=0.0, ge=0)
    """The seconds per token of a pass without gradients."""
    train_microbatch_s: float = Field(default=0.0, ge=0)
    train_s_per_token: float = Field(default=0.0, ge=0)
    """The seconds per token of forward and backward."""
    teacher_passes: float = Field(default=0.0, ge=0)
    """The passes over a batch that the teachers of `algo.teacher` take, in passes of the policy:
    their parameters over the policy's."""
    optimizer_s: float = Field(default=0.0, ge=0)
    """The seconds of an optimizer step."""
    between_s: float = Field(default=0.0, ge=0)
    """The seconds of everything else in a batch."""
    shares_prefixes: bool = True
    """Whether the beginnings that rows of a micro-batch share are computed once, as with
    `trainer.attention` rows and nearly every model."""


class WeightRates(Section):
    """The times of a publication: weights are gathered and staged while engines sample, then
    swapped."""

    stage_s: float = Field(default=0.0, ge=0)
    pause_s: float = Field(default=0.0, ge=0)
    """The seconds in which an engine samples nothing."""


class RolloutRates(Section):
    """The computing times of the rollout's process: gateway, agents, environments."""

    turn_s: float = Field(default=0.0, ge=0)
    """The processor seconds for each turn."""
    handover_s_per_episode: float = Field(default=0.0, ge=0)
    """The processor seconds for assembling a batch and handing it to the trainer."""


class SandboxRates(Section):
    """The sandboxes that episodes hold: one from the first tool call to the end, then one for the
    tests. Their programs compute on processors of the rollout's machine."""

    at_once: int = Field(default=0, ge=0)
    """The most sandboxes at once, for which others wait in a line; 0: episodes hold none."""
    start_s: float = Field(default=0.0, ge=0)
    """The time to start one."""
    verify_s: float = Field(default=0.0, ge=0)
    """The time of the tests, with the transfer of files."""
    cpu: float = Field(default=1.0, gt=0)
    """The processors that a sandbox uses while a tool, its start, or the tests run."""
    memory_mb: int = Field(default=0, ge=0)
    """The memory that each may take."""
    machine_mb: int = Field(default=0, ge=0)
    """The memory of their machine; 0: not known."""


class LengthRates(Section):
    """The distributions of drawn episodes: replies are lognormal, cut at `rollout.max_tokens`."""

    prompt_tokens: int = Field(default=256, ge=1)
    reply_tokens: float = Field(default=512.0, gt=0)
    """The median length of a reply."""
    reply_sigma: float = Field(default=0.8, ge=0)
    """The sigma of the lognormal distribution; 0: all replies have `reply_tokens`."""
    task_share: float = Field(default=0.5, ge=0, le=1)
    """The share of the (log-)variance that the task causes, which is the same for a group."""
    turns: float = Field(default=1.0, ge=1)
    """The mean number of turns (geometric above 1)."""
    tool_tokens: int = Field(default=0, ge=0)
    """The tokens between two turns, such as tool results."""
    tool_s: float = Field(default=0.0, ge=0)
    """The median time of tools between two turns."""
    tool_sigma: float = Field(default=0.0, ge=0)
    """The sigma of the lognormal distribution of that time."""
    learning_share: float = Field(default=1.0, ge=0, le=1)
    """The share of groups whose rewards differ: the others take no optimizer pass."""


class Rates(Section):
    """The inputs of `arl plan` that the run's configuration does not contain."""

    lengths_of: Literal["drawn", "run"] = "drawn"
    """The source of episodes; `run`: those of the run `calibrated_on`."""
    calibrated_on: str = ""
    """The run that was measured."""
    cores: float | None = Field(default=None, gt=0)
    """The processors that engines, trainer and rollout share; unset: there are always enough."""
    hardware: HardwareRates = HardwareRates()
    engine: EngineRates = EngineRates()
    trainer: TrainerRates = TrainerRates()
    weights: WeightRates = WeightRates()
    rollout: RolloutRates = RolloutRates()
    sandboxes: SandboxRates = SandboxRates()
    lengths: LengthRates = LengthRates()

    @model_validator(mode="after")
    def _consistent(self) -> Rates:
        if self.lengths_of == "run" and not self.calibrated_on:
            raise ValueError("lengths_of 'run' needs calibrated_on: the folder of a run")
        return self


def load_rates(path: Path) -> Rates:
    """Read the rates of a TOML file.

    Raises:
        ConfigError: the file cannot be read, has an unknown key, or a bad value.
    """
    return load(Rates, path, {})


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's data sheet: dense bfloat16 teraFLOP/s, TB/s of memory, GB of memory."""

    tflops: float
    tb_per_s: float
    gb: float


GPUS = {
    "A100": Gpu(312, 2.0, 80),
    "L40S": Gpu(362, 0.86, 48),
    "H100": Gpu(989, 3.35, 80),
    "H800": Gpu(989, 3.35, 80),
    "H200": Gpu(989, 4.8, 141),
    "H20": Gpu(148, 4.0, 96),
    "B200": Gpu(2250, 8.0, 180),
}
_BYTES = 2.0
"""The bytes of a weight in bfloat16."""
_MEMORY_USED = 0.9
_KV_OF_7B = 57_344.0
"""The KV bytes per token of a 7.6-billion-parameter model with 4 key/value heads and 28 layers."""
_STEP_OVERHEAD_S = 2e-3
_MICROBATCH_OVERHEAD_S = 30e-3
_PAUSE_OVERHEAD_S = 0.1
_SAMPLED_FLOPS = 2.0
"""The FLOPs per weight and token of a forward pass; a pass with gradients takes 3 times as many."""


def gpu_of(name: str, *, remedy: str = "give one of these") -> Gpu:
    """Return a GPU by its name.

    Raises:
        ConfigError: the name is not known; the message has those that are, and the `remedy`.
    """
    if found := GPUS.get(name.upper()):
        return found
    near = near_match(name.upper(), GPUS)
    raise ConfigError(f"GPU {name!r} is not known{near} (known: {', '.join(GPUS)}); {remedy}")


def rates_of(hardware: HardwareRates, *, tensor_parallel: int = 1, stages: int = 1) -> Rates:
    """Estimate the rates of an engine on `tensor_parallel` GPUs, or so many for each of its
    `stages`, and of a trainer rank on one GPU.

    Decoding is limited by reading all weights and the KV of all contexts from memory; prefills and
    the trainer are limited by arithmetic. With several stages each request passes all of them for a
    token, and each stage computes a part of the requests meanwhile.

    Raises:
        ConfigError: the GPU is not known, or the model does not fit.
    """
    gpu = gpu_of(hardware.gpu, remedy="or give rates, by --rates FILE, or --run to measure them")
    if (parameters := hardware.parameters) <= 0:
        raise ConfigError(
            "hardware.parameters (or --parameters): the number of parameters is not known"
        )
    kv_bytes = hardware.kv_bytes_per_token or _KV_OF_7B * (parameters / 7.6e9) ** (2 / 3)
    gpus = tensor_parallel * stages
    memory = gpu.gb * 1e9 * gpus * _MEMORY_USED
    room = memory - parameters * _BYTES
    if room < kv_bytes:
        raise ConfigError(
            f"{parameters / 1e9:g} billion parameters take {parameters * _BYTES / 1e9:.0f} GB; "
            f"{gpus} x {hardware.gpu} has {memory / 1e9:.0f} GB to use: raise "
            "engine.tensor_parallel_size"
        )
    bandwidth = gpu.tb_per_s * 1e12 * tensor_parallel * hardware.decode_efficiency
    flops = gpu.tflops * 1e12
    forward = _SAMPLED_FLOPS * parameters / (flops * hardware.trainer_efficiency)
    prefill_flops = flops * gpus * hardware.prefill_efficiency
    sharding = max(1.0, parameters / 7.6e9)
    return Rates(
        hardware=hardware,
        engine=EngineRates(
            step_s=stages * _STEP_OVERHEAD_S + parameters * _BYTES / bandwidth,
            step_s_per_request=_SAMPLED_FLOPS * parameters / prefill_flops,
            step_s_per_context_token=kv_bytes / bandwidth / stages,
            prefill_s=_STEP_OVERHEAD_S,
            prefill_s_per_token=_SAMPLED_FLOPS * parameters / prefill_flops,
            kv_tokens=int(room / kv_bytes),
        ),
        trainer=TrainerRates(
            forward_microbatch_s=_MICROBATCH_OVERHEAD_S * sharding,
            forward_s_per_token=forward,
            train_microbatch_s=3 * _MICROBATCH_OVERHEAD_S * sharding,
            train_s_per_token=3 * forward,
            optimizer_s=0.05 * sharding,
        ),
        weights=WeightRates(
            stage_s=parameters * _BYTES / (hardware.network_gb_per_s * 1e9),
            pause_s=_PAUSE_OVERHEAD_S + parameters * _BYTES / (gpu.tb_per_s * 1e12),
        ),
    )
