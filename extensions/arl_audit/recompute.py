"""The repeated computations for audits of a run, outside it: the log-probs of recorded rows under
any kept version, and the training of its batches. Nothing is published or written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgym_rl.config import Config, TrainerConfig
from agentgym_rl.core import BatchShard, FloatArray, Row, TrainerError, WeightsError, parse_version
from agentgym_rl.trainer import Phases, Policy, join_world, make_stepper
from agentgym_rl.weights import fingerprint, inner_linears, is_adapter, multiply_in, opened_version
from agentgym_rl.weights.adapter import merged


@contextmanager
def open_recomputer(
    trainer: TrainerConfig,
    *,
    model_dir: Path,
    versions_dir: Path,
    routing_replay: Literal["auto", "on", "off"] = "off",
) -> Iterator[Recomputer]:
    """Open a recomputer of a run: with its model, in float32 whatever dtype the run used, on the
    run's device if this machine has it.

    Raises:
        TrainerError: the folder holds no model that can be loaded.
    """
    torch.set_num_threads(trainer.num_threads)
    device = "cpu" if trainer.device == "cpu" else "auto"
    with join_world(device=device) as world:
        budget = trainer.longest_row
        policy = Policy.load(
            model_dir,
            world,
            frozen=True,
            trainer=TrainerConfig(max_tokens_per_microbatch=budget),
            routing_replay=routing_replay,
        )
        yield Recomputer(policy, versions_dir, model_dir=model_dir)


class Recomputer:
    """A model in memory with the weights of the version that was loaded last."""

    def __init__(self, policy: Policy, versions_dir: Path, *, model_dir: Path):
        self._policy, self._versions_dir, self._model_dir = policy, versions_dir, model_dir

    def load(self, version: int) -> None:
        """Load `version` and compute with it from now on; after an error the previous one stays in
        use.

        Raises:
            WeightsError: its file is missing or damaged, or is of another version or another model.
        """
        if version < 0:
            raise WeightsError("their policy version was not recorded")
        path = self._versions_dir / f"v-{version}"
        if not path.exists():
            raise WeightsError(
                f"there is no {path}; only a run with --weights.keep_versions=all keeps them all"
            )
        state: Mapping[str, Tensor]
        with opened_version(path) as stored:
            state, label = dict(stored), stored.label
        if _version(label) != version:
            raise WeightsError(f"weights {path} are those of version {label}, not of {version}")
        parameters = {n: _local(t.detach()) for n, t in self._policy.tensors().items()}
        if is_adapter(state):
            state = merged(state, self._model_dir)
        if names := self._policy.names:
            state = names.back(state, source=f"weights {path}")
            # A tied tensor may be in the folder, and so in the version, twice.
            state = {n: t for n, t in state.items() if n in parameters or n not in names.shapes}
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        expected = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
        if found != expected:
            odd = sorted(name for name, _ in found.items() ^ expected.items())[:3]
            raise WeightsError(f"weights {path} are of another model: {', '.join(odd)} differ")
        for name, tensor in parameters.items():
            tensor.copy_(state[name])

    def rounded(self) -> AbstractContextManager[None]:
        """Multiply by the matrices of layers in bfloat16 while the context is open."""
        return multiplying_in(self._policy.model, torch.bfloat16)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], *, plain: bool = False) -> list[FloatArray]:
        """Return the log-probs of each row's trained tokens at their recorded temperatures, packed
        as in training; with `plain`, of each row by itself, as transformers computes it.

        Raises:
            TrainerError: a row is too long, or holds tokens that cannot have been trained.
        """
        _check(rows, self._policy.vocab_size)
        if plain:
            with self._policy.unpacked():
                return [part for row in rows for part in self._packed([row])]
        return self._packed(rows)

    def _packed(self, rows: Sequence[Row]) -> list[FloatArray]:
        results: list[FloatArray] = [np.zeros(0, np.float32)] * len(rows)
        try:
            for members, packed in self._policy.micro_batches(rows):
                found = self._policy.logprobs(packed)
                ends = np.cumsum([rows[i].num_trained for i in members])
                parts = np.split(found.float().cpu().numpy(), ends[:-1])
                for i, part in zip(members, parts, strict=True):
                    results[i] = part
        except ValueError as error:
            raise TrainerError(f"recorded rows cannot be recomputed: {error}") from error
        return results


def _local(tensor: Tensor) -> Tensor:
    """Return the part on this rank; on the only rank, all of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _version(label: str) -> int | None:
    try:
        return parse_version(label)
    except ValueError:
        return None


def _check(rows: Sequence[Row], vocab_size: int) -> None:
    for row in rows:
        if row.tokens.min() < 0 or row.tokens.max() >= vocab_size:
            raise TrainerError(
                f"token ids {row.tokens.min()}..{row.tokens.max()}, the model has "
                f"0..{vocab_size - 1}: is it the model of this run?"
            )


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a repeated batch."""

    step: int
    metrics: dict[str, float]
    parameters: str


def replay_batches(
    config: Config,
    shards: Sequence[BatchShard],
    *,
    model_dir: Path,
    checkpoint: Path | None,
    lengths: Mapping[int, int] | None = None,
) -> Iterator[Replayed]:
    """Train `shards`, complete batches in order, with one rank, from `checkpoint` on (None: from
    the model). `lengths`: the number of batches that the run was to have when it trained a batch,
    where that is not `config.steps`.

    Raises:
        TrainerError: the checkpoint cannot be loaded, or a batch cannot be trained.
    """
    torch.set_num_threads(config.trainer.num_threads)
    with join_world(device=config.trainer.device) as world:
        stepper = make_stepper(config, world, model_dir)
        if checkpoint is not None:
            stepper.restore(checkpoint)
        for shard in shards:
            stepper.set_length((lengths or {}).get(shard.step, config.steps))
            metrics = stepper.train_shard(shard, Phases())
            yield Replayed(shard.step, metrics, fingerprint(stepper.policy.trained_state()))


@contextmanager
def multiplying_in(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Apply `multiply_in` while the context is open."""
    before = [(part, part.__dict__.get("forward")) for part in inner_linears(model)]
    multiply_in(model, dtype)
    try:
        yield
    finally:
        for part, forward in before:
            if forward is None:
                del part.forward
            else:
                part.forward = forward
