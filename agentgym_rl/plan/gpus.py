"""Rates of a model on a GPU that nobody has measured: what its data sheet allows, times what is
usually reached of that. Good for comparing configurations; measure before you believe seconds."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym_rl.core.errors import ConfigError

from .rates import EngineRates, HardwareRates, Rates, TrainerRates, WeightRates


@dataclass(frozen=True, slots=True)
class Gpu:
    """Of a data sheet: dense bfloat16 teraFLOP/s, TB/s of memory, GB of memory."""

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
"""Of a weight in bfloat16."""
_MEMORY_USED = 0.9
_KV_OF_7B = 57_344.0
"""Bytes a token of a 7.6-billion-parameter model with 4 key/value heads and 28 layers."""
_STEP_OVERHEAD_S = 2e-3
_MICROBATCH_OVERHEAD_S = 30e-3
_PAUSE_OVERHEAD_S = 0.1
_SAMPLED_FLOPS = 2.0
"""Per weight and token of a forward pass; a pass with gradients takes three times that."""


def gpu_of(name: str) -> Gpu:
    """A GPU by its name.

    Raises:
        ConfigError: it is not known.
    """
    if name not in GPUS:
        raise ConfigError(
            f"GPU {name!r} is not known (known: {', '.join(GPUS)}); give the rates themselves in "
            "--rates FILE, or calibrate on a run of it with --run"
        )
    return GPUS[name]


def rates_of(hardware: HardwareRates, *, tensor_parallel: int = 1) -> Rates:
    """Rates of an engine on `tensor_parallel` GPUs, and of a trainer's rank on one.

    Decoding reads all weights and the KV of all contexts from memory; prefills and the trainer
    are held up by arithmetic.

    Raises:
        ConfigError: the GPU is not known, or the model does not fit.
    """
    gpu, parameters = gpu_of(hardware.gpu), hardware.parameters
    if parameters <= 0:
        raise ConfigError(
            "hardware.parameters (or --parameters): how many the model has is not known"
        )
    kv_bytes = hardware.kv_bytes_per_token or _KV_OF_7B * (parameters / 7.6e9) ** (2 / 3)
    memory = gpu.gb * 1e9 * tensor_parallel * _MEMORY_USED
    room = memory - parameters * _BYTES
    if room < kv_bytes:
        raise ConfigError(
            f"{parameters / 1e9:g} billion parameters take {parameters * _BYTES / 1e9:.0f} GB; "
            f"{tensor_parallel} x {hardware.gpu} has {memory / 1e9:.0f} GB to use: raise "
            "engine.tensor_parallel_size"
        )
    bandwidth = gpu.tb_per_s * 1e12 * tensor_parallel * hardware.decode_efficiency
    flops = gpu.tflops * 1e12
    forward = _SAMPLED_FLOPS * parameters / (flops * hardware.trainer_efficiency)
    prefill_flops = flops * tensor_parallel * hardware.prefill_efficiency
    sharding = max(1.0, parameters / 7.6e9)
    return Rates(
        hardware=hardware,
        engine=EngineRates(
            step_s=_STEP_OVERHEAD_S + parameters * _BYTES / bandwidth,
            step_s_per_request=_SAMPLED_FLOPS * parameters / prefill_flops,
            step_s_per_context_token=kv_bytes / bandwidth,
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
