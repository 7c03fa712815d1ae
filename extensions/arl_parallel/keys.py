"""The key `trainer.mesh`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import field_validator

from agentgym_rl.core import OnResume, RankKeys, Sections

from .plans import Heads, rule
from .shape import Shape

if TYPE_CHECKING:
    from agentgym_rl.config import TrainerConfig


def _instead(what: str, shape: str) -> str:
    return (
        f"trainer.mesh {what} over ranks: --trainer.num_ranks=4 --trainer.mesh={shape}, or "
        f"--cluster.allocation='embedded:d1+fsdp:d2{shape}'"
    )


class MeshKeys(RankKeys):
    """The arrangement of the ranks that share rows, matrices and experts."""

    after = "num_replicas"
    absent: ClassVar[Mapping[str, str]] = {
        "tensor_parallel": _instead("cuts matrices", "t2"),
        "context_parallel": _instead("cuts rows", "c2"),
        "expert_parallel": _instead("divides experts", "e2"),
    }

    mesh: OnResume[str] = ""
    """The numbers of ranks that divide the tokens of a row (c), the matrices and the vocabulary
    (t), and the experts (e), as in `c2t2`; other ranks have other rows. `cluster.allocation` sets
    it: `fsdp:d2c2t2` are eight ranks. Experimental on GPUs: not measured yet."""

    @property
    def shape(self) -> Shape:
        """Return the numbers."""
        return Shape.read(self.mesh)

    @property
    def ranks_per_row(self) -> int:
        return self.shape.unit

    def computed_share(self, name: str) -> float:
        layer, shape = name.rpartition(".")[0], self.shape
        if ".experts." in name:
            return 1 / shape.experts
        whole = Heads(shape.tensor, shape.tensor)  # heads that divide
        words = layer.endswith(("embed_tokens", "lm_head"))
        return 1 / shape.tensor if words or rule(layer, whole, shape.tensor) else 1.0

    @property
    def model_parallel(self) -> str:
        return "arl_parallel.parallel:Parallel" if self.mesh else super().model_parallel

    def conflicts(self, config: Sections) -> Iterator[str]:
        if not self.mesh:
            return
        trainer = cast("TrainerConfig", self)
        if problem := self.shape.problem(trainer.num_ranks // trainer.num_replicas):
            yield f"trainer.mesh {self.mesh!r}: {problem} (num_ranks / num_replicas)"
        if trainer.compile:
            yield "trainer.mesh with trainer.compile: not supported yet; leave one out"
        if trainer.optimizer == "adamw8bit":
            yield (
                "trainer.mesh with trainer.optimizer 'adamw8bit': blocks of its state would depend "
                "on the mesh; use adamw_bf16"
            )

    @field_validator("mesh")
    @classmethod
    def _is_mesh(cls, mesh: str) -> str:
        Shape.read(mesh)
        return mesh
