"""The contract of a trainer backend: the library that has the model on the ranks, and trains it.
Ours is the `Stepper`, with FSDP2; `trainer.backend` names others (docs/trainer.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from agentgym_rl.algo import PackedRows
from agentgym_rl.core import BatchShard
from agentgym_rl.storage import Manifest
from agentgym_rl.weights import Piece, SourceNames

from .adapter import Adapter
from .checkpoint import Checkpoints
from .shard_tensors import ShardTokens
from .sharding import Offload
from .usage import Phases
from .world import World

OnTokens = Callable[[ShardTokens, Tensor, Tensor], None]


class Model(Protocol):
    """The trained model of a rank; `Policy` has the meaning of each member."""

    world: World
    adapter: Adapter | None
    names: SourceNames | None
    packs: bool

    @property
    def rounded_matrices(self) -> frozenset[str]: ...
    def budget(self, lengths: Sequence[int]) -> int: ...
    def logprobs(self, packed: PackedRows) -> Tensor: ...
    def idle(self) -> Tensor: ...
    def unpacked(self) -> AbstractContextManager[None]: ...
    def pieces(self) -> list[Piece]: ...
    def gathered(self, owners: Sequence[int] | None = None) -> Iterator[dict[str, Tensor]]: ...


class TrainerBackend(ABC):
    """The model of a rank, and its training. Ranks call what is *collective* in step; an error of
    one of them ends all, and they begin again with the newest checkpoint."""

    policy: Model
    flops: float = 0.0
    """A number that grows with each pass: ranks with passes do not count as hanging."""

    @abstractmethod
    def train_shard(
        self, shard: BatchShard, phases: Phases, *, on_tokens: OnTokens | None = None
    ) -> Mapping[str, float]:
        """Train a batch, of which this rank has a part; see `Stepper` (collective).

        Raises:
            TrainerError: no ranks can train it. A lack of memory is passed on as it is.
        """

    @abstractmethod
    def checkpoints(self, folder: Path, **options: Any) -> Checkpoints:
        """Return the writer of checkpoints: its `write` puts this rank's files, of model, optimizer
        and random state, into a folder (collective)."""

    @abstractmethod
    def restore(self, checkpoint: Path) -> Manifest:
        """Continue from a checkpoint, of any number of ranks (collective).

        Raises:
            TrainerError: there is no complete one, or it is of another model.
        """

    @abstractmethod
    def export(self, folder: Path, *, model_dir: Path) -> Path:
        """Write a folder that `from_pretrained` loads, with the other files of `model_dir`; return
        it (collective).

        Raises:
            TrainerError: it cannot be written.
        """

    @abstractmethod
    def split(self) -> None:
        """Halve the tokens of a micro-batch, for batches that do not fit in memory."""

    @abstractmethod
    def offload(self) -> Offload:
        """Return what moves the state off the device while engines use it."""
