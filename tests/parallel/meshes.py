"""Ranks of a mesh, in processes, and what they found."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from features import COLUMNS, FEATURES, differences

from tests.e2e.forked import run_all

CHILD = Path(__file__).with_name("mesh_child.py")
TABLE = os.environ.get("ARL_PARALLEL_TABLE", "")
"""A file to which the table of differences is written, as Markdown."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a trainer."""

    size: int = 1
    mesh: str = ""
    replicas: int = 1

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of the trainer."""
        return {
            **({"mesh": self.mesh} if self.mesh else {}),
            **({"num_replicas": self.replicas} if self.replicas > 1 else {}),
        }


MESHES: Mapping[str, Ranks] = {
    "1": Ranks(),
    "c1": Ranks(1, "c1"),
    "d2": Ranks(2),
    "d4": Ranks(4),
    "c2": Ranks(2, "c2"),
    "t2": Ranks(2, "t2"),
    "c2t2": Ranks(4, "c2t2"),
    "c4": Ranks(4, "c4"),
    "t4": Ranks(4, "t4"),
    "d2c2": Ranks(4, "c2"),
    "d2t2": Ranks(4, "t2"),
    "2 replicas of c2": Ranks(4, "c2", 2),
    "2 replicas of t2": Ranks(4, "t2", 2),
    "e2": Ranks(2, "e2"),
    "c2e2": Ranks(2, "c2e2"),
    "t2e2": Ranks(2, "t2e2"),
    "e4": Ranks(4, "e4"),
    "d2t2e4": Ranks(4, "t2e4"),
    "2 replicas of t2e2": Ranks(4, "t2e2", 2),
}
"""Ranks by name; d counts parts of a batch."""


def run_ranks(
    ranks: Ranks,
    jobs: Sequence[tuple[str, ...]],
    models: Path,
    out: Path,
    *,
    planted: str = "",
    wide: bool = True,
) -> None:
    """Let ranks do jobs, each a kind, a feature's name and maybe a folder, and leave what they
    found in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    said = {
        "jobs": list(jobs),
        "mesh": ranks.keys,
        "models": str(models),
        "planted": planted,
        "size": ranks.size,
        "wide": wide,
    }
    spec = out / "spec.json"
    spec.write_text(json.dumps(said))
    run_all(CHILD, *((spec, rank) for rank in range(ranks.size)))
    (out / "meet").unlink(missing_ok=True)


def found(out: Path, ranks: Ranks, kind: str, name: str) -> list[Any]:
    """What each rank left of a job."""
    return [torch.load(out / f"{kind}-{name}-{rank}.pt") for rank in range(ranks.size)]


class References:
    """What one rank computes, once for each feature."""

    def __init__(self, models: Path, folder: Path) -> None:
        self._models, self._folder = models, folder

    def have(self, names: Iterable[str]) -> None:
        """Compute those of features that are not known yet."""
        lacking = [name for name in names if not self._path(name).exists()]
        for wide in (True, False):
            its = [it for it in lacking if FEATURES[it].half != wide]
            if its:
                out = self._folder / f"{os.getpid()}-{wide}"
                run_ranks(Ranks(), [("compute", it) for it in its], self._models, out, wide=wide)
                for name in its:
                    (out / f"compute-{name}-0.pt").rename(self._path(name))

    def of(self, name: str) -> Mapping[str, Any]:
        """The one of a feature."""
        return torch.load(self._path(name))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.pt"


def cells(
    ranks: Ranks,
    names: Sequence[str],
    references: References,
    models: Path,
    out: Path,
    *,
    planted: str = "",
) -> dict[str, dict[str, float]]:
    """The largest differences of features on ranks from those on one, by feature and column."""
    references.have(names)
    for wide in (True, False):
        its = [it for it in names if FEATURES[it].half != wide]
        jobs = [("compute", it) for it in its]
        if jobs:
            run_ranks(ranks, jobs, models, out, planted=planted, wide=wide)
    table: dict[str, dict[str, float]] = {}
    for name in names:
        one = references.of(name)
        parts = [differences(one, it) for it in found(out, ranks, "compute", name)]
        table[name] = {column: max(it[column] for it in parts) for column in COLUMNS}
    return table


def note(mesh: str, table: Mapping[str, Mapping[str, float]]) -> None:
    """Write the rows of a table of differences, if that is wanted."""
    if not TABLE:
        return
    with Path(TABLE).open("a", encoding="utf-8") as file:
        for name, its in table.items():
            columns = " | ".join(f"{its[column]:.0e}" for column in COLUMNS)
            file.write(f"| {mesh} | {name} | {columns} |\n")
