"""Jobs of ranks: checkpoints that they write and resume, and versions that they publish."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from features import FEATURES, TRAINER, make_stepper, state, train
from torch import Tensor
from trainer_samples import save_checkpoint

from agentgym_rl.config import load_config
from agentgym_rl.trainer import Policy, World
from agentgym_rl.trainer.publication import VersionWriter
from agentgym_rl.weights import StoredVersion

NUM_BEFORE = 2
"""The batches before a checkpoint."""


def save(name: str, models: Path, world: World, mesh: Mapping[str, Any], folder: str) -> Any:
    """Train some batches, and write a checkpoint into `folder`; return what it holds, and the
    metrics of the next batch."""
    feature = FEATURES[name]
    stepper = make_stepper(feature, models, world, mesh)
    for number in range(NUM_BEFORE):
        train(stepper, feature, number)
    its = state(stepper)
    save_checkpoint(
        Path(folder),
        stepper.policy,
        stepper.optimizer,
        step=NUM_BEFORE,
        config_hash="",
        keep=1,
        terms=stepper.model_terms,
    )
    return {"state": its, "next": train(stepper, feature, NUM_BEFORE)}


def resume(name: str, models: Path, world: World, mesh: Mapping[str, Any], folder: str) -> Any:
    """Resume the checkpoint in `folder`; return what `save` does."""
    feature = FEATURES[name]
    stepper = make_stepper(feature, models, world, mesh)
    stepper.restore(Path(folder) / f"step-{NUM_BEFORE}")
    its = state(stepper)
    return {"state": its, "next": train(stepper, feature, NUM_BEFORE)}


def publish(name: str, models: Path, world: World, mesh: Mapping[str, Any], folder: str) -> Any:
    """Return digests of all the forms in which a policy leaves the trainer (rank 0)."""
    feature = FEATURES[name]
    trainer = TRAINER.model_copy(update={**mesh, "num_ranks": world.size})
    policy = Policy.load(models / feature.model, world, adapter=feature.lora, trainer=trainer)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.25).add_(0.125)
    its: dict[str, Any] = {
        "trained": _digest(policy.trained_state()),
        "full": _digest(policy.full_state()),
        "exported": _digest(policy.exported()),
    }
    for dtype in ("float32", "bfloat16"):
        engine = load_config(overrides={"engine.dtype": dtype}).own_engine
        place = Path(folder) / f"{name}-{dtype}"
        if world.rank == 0:
            place.mkdir(parents=True)
        world.barrier()
        config = models / feature.model / "config.json"
        its[f"parameters {dtype}"] = (
            VersionWriter(policy, place, engine=engine, config=config).write(0).parameters
        )
        if world.rank == 0:
            its[f"files {dtype}"] = dict(StoredVersion(place / "v0").digests)
    return its if world.rank == 0 else None


def _digest(tensors: Mapping[str, Tensor]) -> str:
    said = blake2b(digest_size=16)
    for name, tensor in tensors.items():
        said.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        said.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return said.hexdigest()
