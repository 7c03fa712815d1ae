"""The kind of this backend, and the check before a run."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from arl_scale.trainers import BackendKeys, TrainerKind

from agentgym_rl.config import Config
from agentgym_rl.core import adapter_of, install_command

KIND = TrainerKind("arl_megatron.trainer:load", "dt")


def check_megatron(config: Config, trains: bool) -> Iterator[str]:
    """Yield why a run cannot be trained with Megatron-Core, if it is to be."""
    if not trains or config.trainer.part(BackendKeys).backend != "megatron":
        return
    what = "trainer.backend 'megatron'"
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        yield f"{what} needs megatron-core: {install_command('megatron')}"
    for problem in _not_implemented(config):
        yield f"{what} has no {problem} yet: leave it out"


def _not_implemented(config: Config) -> Iterator[str]:
    """Yield the keys that this backend would ignore."""
    trainer = config.trainer
    if adapter_of(config) is not None:
        yield "adapters (lora.rank)"
    if config.compute_dtype != "float32":
        yield "bfloat16 (--trainer.dtype=float32 trains beside a bfloat16 engine)"
    if trainer.optimizer != "adamw":
        yield f"trainer.optimizer {trainer.optimizer!r}"
    if trainer.num_replicas > 1:
        yield "trainer.num_replicas (all its data-parallel ranks are copies)"
    if config.cluster.shares_devices:
        yield "cluster.colocated"
    for name in ("activation_checkpointing", "cpu_offload", "compile", "head_chunk_tokens"):
        if getattr(trainer, name):
            yield f"trainer.{name}"
