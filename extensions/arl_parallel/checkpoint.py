"""Checkpoints of parameters that are cut: torch's distributed checkpoints describe each rank's
numbers by their place in the complete parameter, so that any other mesh can read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from agentgym_rl.trainer import Cut, World


class Chunks(Tensor):
    """The numbers of a parameter that a rank keeps, in torch's protocol of what can be written. It
    is a tensor, since torch looks for the parts of tensors alone."""

    whole: torch.Size
    chunks: dict[tuple[int, ...], Tensor]

    @classmethod
    def of(cls, shard: Tensor, cut: Cut, rank: int, num_ranks: int) -> Chunks:
        """Return those of a rank, one of the `num_ranks` of a copy of the model."""
        made = shard.detach().as_subclass(cls)
        made.whole, made.chunks = cut.shape, {}
        for places, here in cut.shard(rank, num_ranks):
            starts = [it.start or 0 for it in places]
            starts += [0] * (len(cut.shape) - len(starts))
            made.chunks[tuple(starts)] = shard[here]
        return made

    def size(self, dim: int | None = None) -> Any:
        """Return the size of the complete parameter."""
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, name: str, item: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(offset)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(offset), part.shape),
                    properties=properties,
                    size=self.whole,
                ),
            )
            for offset, part in self.chunks.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(torch.Size(offset), part.shape)
            for offset, part in self.chunks.items()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.chunks[tuple(index.offset)]


def described(state: Mapping[str, Any], cuts: Mapping[str, Cut], world: World) -> dict[str, Any]:
    """Return the state with `Chunks` in place of what belongs to a parameter that is cut: itself,
    and what an optimizer keeps for each of its numbers."""
    num_ranks = world.mesh.size(-1)  # of a copy of the model

    def visited(value: Any, cut: Cut | None) -> Any:
        if isinstance(value, Mapping):
            return {key: visited(its, cuts.get(str(key), cut)) for key, its in value.items()}
        if cut is None or not isinstance(value, DTensor):
            return value
        return Chunks.of(value.to_local(), cut, world.rank % num_ranks, num_ranks)

    return visited(state, None)
