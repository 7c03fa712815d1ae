"""The contract of model parallelism: the ranks of a *unit* compute the same rows together, each a
part of their tokens, of the matrices or of the experts (docs/parallel.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from agentgym_rl.algo import PackedRows
from agentgym_rl.config import TrainerConfig
from agentgym_rl.runtime import import_function
from agentgym_rl.weights import rows_of

from .world import World

if TYPE_CHECKING:
    from .slices import Slices
    from .spans import Pieces

Index = tuple[slice, ...]
Compute = Callable[[PackedRows, Tensor, "Pieces"], Tensor]
"""The forward of a model on a rank's own tokens and predictions; the tensor has the places of these
among all predictions."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The division of a parameter among ranks that compute with different parts of it. Ranks with
    consecutive numbers have consecutive parts, and FSDP2 shards each part over the other ranks."""

    shape: torch.Size
    """The shape of the complete parameter."""
    dim: int
    parts: Sequence[Sequence[tuple[int, int]]]
    """The ranges, first and end, of each part along `dim`."""

    def taken(self, whole: Tensor, part: int) -> Tensor:
        """Return a part of the complete parameter, as a copy."""
        ranges = self.parts[part]
        return torch.cat([whole.narrow(self.dim, a, b - a) for a, b in ranges], self.dim)

    def rows(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """Return the first row, and the end of the rows, that a rank keeps of its part, as one of
        the `num_ranks` of a copy of the model."""
        count = len(self.parts)
        size = self._size(rank) if self.dim == 0 else self.shape[0]
        found = rows_of((size,), rank // count, num_ranks // count)
        return (0, size) if found is ... else (found.start, found.stop)

    def local(self, rank: int, num_ranks: int) -> torch.Size:
        """Return the shape of what a rank keeps."""
        first, end = self.rows(rank, num_ranks)
        shape = [*self.shape]
        shape[self.dim] = self._size(rank)
        return torch.Size([end - first, *shape[1:]])

    def shard(
        self, rank: int, num_ranks: int, rows: tuple[int, int] | None = None
    ) -> list[tuple[Index, Index]]:
        """Return the places of the numbers that a rank keeps: in the complete parameter, or in some
        `rows` of it, and in what the rank keeps."""
        first, end = self.rows(rank, num_ranks)
        found: list[tuple[Index, Index]] = []
        at = 0
        for a, b in self.parts[rank % len(self.parts)]:
            if self.dim:
                between = (slice(None),) * (self.dim - 1)
                if first < end:
                    there = (slice(first, end), *between, slice(a, b))
                    found.append((there, (slice(None), *between, slice(at, at + b - a))))
            elif (low := max(first, at)) < (high := min(end, at + b - a)):
                there = slice(a + low - at, a + high - at)
                found.append(((there,), (slice(low - first, high - first),)))
            at += b - a
        return found if rows is None else list(_within(rows, found))

    def _size(self, rank: int) -> int:
        """Return the length of a rank's part along `dim`."""
        return sum(b - a for a, b in self.parts[rank % len(self.parts)])


def _within(
    rows: tuple[int, int], places: Iterable[tuple[Index, Index]]
) -> Iterator[tuple[Index, Index]]:
    """Yield the places of numbers that are in some rows, as places in these rows."""
    for (there, *others), (here, *inner) in places:
        low, high = max(there.start, rows[0]), min(there.stop, rows[1])
        if low < high:
            at = (here.start or 0) + low - there.start
            local = slice(low - rows[0], high - rows[0])
            yield (local, *others), (slice(at, at + high - low), *inner)


class Whole(Protocol):
    """The complete parameter of a part; the attribute `WHOLE` of a cut parameter."""

    def joined(self, part: Tensor) -> Tensor:
        """Return the complete matrix of this rank's part (collective)."""
        ...

    def taken(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a complete matrix."""
        ...


WHOLE = "arl_whole"


class Vocabulary:
    """The tokens whose logits a rank computes: all of them. With model parallelism, a subclass for
    those from `start` to `end`."""

    start = 0
    end: int | None = None

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Return log-probs of this rank's tokens, among all tokens."""
        return torch.log_softmax(logits, -1)

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sum over the ranks that share the vocabulary, in place."""
        return numbers

    def likeliest(self, logprobs: Tensor, count: int, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Return the largest log-probs of the first `vocab_size` tokens, with their ids."""
        top = logprobs[:, :vocab_size].topk(count, dim=1)
        return top.values, top.indices


class Divisible(Protocol):
    """The part of a `PackedModel` that a division needs."""

    model: Any

    @property
    def is_segmented(self) -> bool:
        """See `PackedModel.is_segmented`."""
        ...

    @property
    def cuts_vocabulary(self) -> bool:
        """See `PackedModel.cuts_vocabulary`."""
        ...

    def cut_vocabulary(self, vocabulary: Vocabulary) -> None:
        """See `PackedModel.cut_vocabulary`."""
        ...


class ModelParallel(Protocol):
    """The model parallelism of one model."""

    cuts: Mapping[str, Cut]
    """The parameters that are cut, by their names in the model."""

    def cut(self, model: Divisible, slices: Slices) -> None:
        """Replace the parameters by parts, and change the modules that compute with them, before
        the model is sharded (collective).

        Raises:
            TrainerError: the model cannot be computed so.
        """
        ...

    def groups(self, module: nn.Module) -> list[tuple[list[nn.Module], DeviceMesh]]:
        """Return the parts of a block, or of the model outside its blocks, whose parameters are
        sharded over some ranks only, with these."""
        ...

    def outputs(self, packed: PackedRows, compute: Compute) -> Tensor:
        """Return outputs [P, …] at the predictions on all ranks of the unit; the gradient of each
        reaches one rank (collective)."""
        ...

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sum over the ranks of the unit, on the CPU (collective)."""
        ...

    def mark(self, model: nn.Module) -> None:
        """Let the parameters of the sharded model know the `Whole` that they are parts of."""
        ...

    def checkpointed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state in which what is cut is described by its place in the whole, and that has
        the same memory."""
        ...


def model_parallel(trainer: TrainerConfig, world: World) -> ModelParallel | None:
    """Return the division that the configured ranks are arranged for; None: there is none, or a
    single rank (a trial, an audit) computes what they do."""
    path = trainer.model_parallel if world.size > 1 else ""
    return import_function("trainer", path, gets="world, trainer")(world, trainer) if path else None
