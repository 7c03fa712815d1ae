"""Checkpoints: model, optimizer and random state, for any number of ranks.

`checkpoints/step-N/` covers N trained batches: torch's distributed checkpoint plus
`manifest.json`. A folder of that name is complete: it was written beside, fsynced and renamed.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from agentgym_rl.config import Config, dump_toml
from agentgym_rl.errors import TrainerError

from .critic import Critic
from .policy import Policy

_MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-(\d+)")
_LIBRARIES = ("agentgym-rl", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is of."""

    step: int
    """Training batches done; the next one is batch `step`."""
    version: int
    """Policy version of the weights: equal to `step`."""
    config_hash: str
    num_ranks: int
    """Ranks that wrote it; any number may read it."""
    libraries: dict[str, str]


def config_hash(config: Config) -> str:
    """A hash of the resolved configuration."""
    return blake2b(dump_toml(config).encode(), digest_size=16).hexdigest()


def save_checkpoint(
    folder: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    config_hash: str,
    keep: int,
    critic: Critic | None = None,
) -> Path:
    """Write `folder`/step-<step> and remove all but the newest `keep` (collective).

    Raises:
        TrainerError: it could not be written; an earlier checkpoint is untouched.
    """
    world, path = policy.world, folder / f"step-{step}"
    beside = folder / f".{path.name}.tmp"
    try:
        if world.rank == 0:
            shutil.rmtree(beside, ignore_errors=True)  # of a run killed while it wrote
            beside.mkdir(parents=True)
        world.barrier()
        save(_state(policy, optimizer, critic), checkpoint_id=beside)
        if world.rank == 0:
            manifest = Manifest(step, step, config_hash, world.size, _versions())
            _write_durably(beside / _MANIFEST, json.dumps(asdict(manifest), indent=2))
            _publish_folder(beside, path)
            _prune(folder, keep)
        world.barrier()
    except (OSError, CheckpointException, RuntimeError) as error:
        raise TrainerError(f"cannot write checkpoint {path}: {error}") from error
    return path


def load_checkpoint(
    path: Path,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    *,
    critic: Critic | None = None,
) -> Manifest:
    """Restore model, optimizer, critic and random state in place (collective).

    Raises:
        TrainerError: no complete checkpoint there, or one of another model.
    """
    manifest = read_manifest(path)
    state = _state(policy, optimizer, critic)
    try:
        load(state, checkpoint_id=path)
        set_state_dict(
            policy.model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        if critic is not None:
            set_state_dict(
                critic.value_model.model,
                critic.optimizer,
                model_state_dict=state["critic"]["model"],
                optim_state_dict=state["critic"]["optimizer"],
            )
    except (OSError, CheckpointException, RuntimeError, ValueError, KeyError) as error:
        raise TrainerError(f"cannot load checkpoint {path}: {error}") from error
    torch.set_rng_state(state["random"])
    return manifest


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint folder.

    Raises:
        TrainerError: there is none, or it is damaged.
    """
    try:
        return Manifest(**json.loads((path / _MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise TrainerError(f"{path} is no complete checkpoint: {error}") from error


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _FOLDER.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def _state(
    policy: Policy, optimizer: torch.optim.Optimizer, critic: Critic | None
) -> dict[str, Any]:
    model, optim = get_state_dict(policy.model, optimizer)
    # One random state for all ranks: no rank draws numbers of its own.
    state = {"model": model, "optimizer": optim, "random": torch.get_rng_state()}
    if critic is not None:
        model, optim = get_state_dict(critic.value_model.model, critic.optimizer)
        state["critic"] = {"model": model, "optimizer": optim}
    return state


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _publish_folder(beside: Path, path: Path) -> None:
    """Rename, after everything in it (and then the rename itself) is on disk."""
    for item in (*beside.iterdir(), beside):
        _fsync(item)
    if path.exists():
        shutil.rmtree(path)  # the same step, written before a resume
    beside.rename(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _prune(folder: Path, keep: int) -> None:
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
