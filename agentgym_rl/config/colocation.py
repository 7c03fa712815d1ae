"""May engines and trainer ranks of a run share devices (`cluster.colocated`)?"""

from __future__ import annotations

from collections.abc import Iterator

from .engine import EndpointConfig, OwnEngineConfig, VllmEngineConfig
from .eval import EvalConfig
from .machine import ClusterConfig
from .trainer import TrainerConfig, WeightsConfig


def check_colocated(
    engine: OwnEngineConfig | EndpointConfig,
    trainer: TrainerConfig,
    *,
    weights: WeightsConfig,
    evaluations: EvalConfig,
    cluster: ClusterConfig,
) -> None:
    """Raises ValueError, with all that is in the way, where they may not."""
    problems = [
        *_problems(engine, trainer, cluster),
        *_problems_of_others(weights, evaluations),
    ]
    if problems:
        raise ValueError(f"cluster.colocated: {'; '.join(problems)}")


def _problems(
    engine: OwnEngineConfig | EndpointConfig, trainer: TrainerConfig, cluster: ClusterConfig
) -> Iterator[str]:
    if not isinstance(engine, OwnEngineConfig):
        yield f"engine.type {engine.type!r} is somebody else's, and cannot sleep"
        return
    if isinstance(engine, VllmEngineConfig):
        yield from _problems_of_vllm(engine, trainer.gpus)
    each = engine.tensor_parallel_size if isinstance(engine, VllmEngineConfig) else 1
    devices = engine.num_servers * each
    if devices != trainer.num_ranks:
        yield (
            f"engines and ranks on the same devices need as many: engine.num_servers "
            f"{engine.num_servers} x {each} = {devices}, trainer.num_ranks {trainer.num_ranks}"
        )
    if cluster.type != "local" and each > 1:
        yield (
            f"cluster.type {cluster.type!r} gives out parts of a GPU, not of several: "
            f"engine.tensor_parallel_size has to be 1, got {each}"
        )


def _problems_of_vllm(engine: VllmEngineConfig, gpus: tuple[int, ...]) -> Iterator[str]:
    if engine.urls:
        yield (
            "engine.urls names servers that somebody else started, which this run can neither "
            "place nor start again on the trainer's devices; leave it out"
        )
    if set(engine.gpus) != set(gpus):
        yield (
            f"engine.gpus {list(engine.gpus)} and trainer.gpus {list(gpus)} have to be the same, "
            "or both left out"
        )


def _problems_of_others(weights: WeightsConfig, evaluations: EvalConfig) -> Iterator[str]:
    if weights.transport not in ("shm", "gloo"):
        yield (
            f"weights.transport {weights.transport!r} writes into weights that are served, "
            "and a sleeper's are not there; use shm or gloo"
        )
    if evaluations.scheduled:
        yield (
            "eval.every and eval.every_minutes start one engine more, beside training, where the "
            "devices are the trainer's. Evaluate checkpoints instead: trainer.checkpoint_every, "
            "and arl eval --checkpoint"
        )
