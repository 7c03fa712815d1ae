"""The key `trainer.backend`: the libraries that train, which packages add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from agentgym_rl.core import OneOf, RankKeys, Sections, extension_names, load_extension

TRAINERS = "trainers"
"""The group of entry points."""


@dataclass(frozen=True, slots=True)
class TrainerKind:
    """A library that trains: the member of a package."""

    load: str
    """The function, `module:function`, with which each rank loads its `TrainerBackend`
    (agentgym_rl/trainer/backend.py): of the configuration, a `World`, and the folder of the model
    (collective). It raises ConfigError for keys that the library does not implement."""
    dimensions: str = "d"
    """Its letters in `cluster.allocation`, of d, c, t and e: the numbers of `trainer.mesh`. Ranks
    that c or t counts get the same rows."""


FSDP = TrainerKind("agentgym_rl.trainer.step:make_stepper", "dcte")


class BackendKeys(RankKeys):
    """The library that trains."""

    after = "num_ranks"

    backend: Annotated[
        str, OneOf(lambda: extension_names(TRAINERS), usual="fsdp", group=TRAINERS)
    ] = "fsdp"
    """The library that trains: `fsdp`, or one that a package adds. `cluster.allocation` sets it."""

    @property
    def backend_loader(self) -> str:
        return load_extension(TRAINERS, self.backend, of=TrainerKind).load

    def conflicts(self, config: Sections) -> Iterator[str]:
        mesh = str(getattr(self, "mesh", ""))
        known = load_extension(TRAINERS, self.backend, of=TrainerKind).dimensions
        if odd := [it for it in mesh if it.isalpha() and it not in known]:
            yield f"trainer.mesh {mesh!r} with trainer.backend {self.backend!r}: it has no {odd[0]}"
