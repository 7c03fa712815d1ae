"""A rank that computes features (features.py), or checkpoints, and leaves what it found."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import planted
import torch
from checkpoint_jobs import publish, resume, save
from features import FEATURES, compute, make_stepper
from wide import widen

from agentgym_rl.config import TrainerConfig
from agentgym_rl.core import TrainerError
from agentgym_rl.trainer import World, join_world

Job = Callable[[str, Path, World, Mapping[str, Any], str], Any]


def _compute(name: str, models: Path, world: World, mesh: Mapping[str, Any], folder: str) -> Any:
    return compute(FEATURES[name], models, world, mesh)


def _refuse(name: str, models: Path, world: World, mesh: Mapping[str, Any], folder: str) -> Any:
    try:
        make_stepper(FEATURES[name], models, world, mesh)
    except TrainerError as error:
        return str(error)
    return "it is computed"


JOBS: Mapping[str, Job] = {
    "compute": _compute,
    "publish": publish,
    "refuse": _refuse,
    "resume": resume,
    "save": save,
}


def main(spec: str, rank: str) -> None:
    """Run the jobs of a specification, a list of their kinds, the names of
    features, and folders."""
    said = json.loads(Path(spec).read_text())
    out, models, size = Path(spec).parent, Path(said["models"]), said["size"]
    torch.set_num_threads(1)
    if said["wide"]:
        widen()
    if said["planted"]:
        planted.PLANTS[said["planted"]]()
    mesh = said["mesh"]
    unit = TrainerConfig(num_ranks=size, **mesh).ranks_per_row
    with join_world(
        rank=int(rank),
        size=size,
        unit=unit,
        num_replicas=mesh.get("num_replicas", 1),
        rendezvous=f"file://{out}/meet",
        timeout_s=100,
    ) as world:
        for kind, name, *folder in said["jobs"]:
            try:
                found = JOBS[kind](name, models, world, mesh, "".join(folder))
            except BaseException:
                print(f"{kind} {name!r} on {mesh}", file=sys.stderr)
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            torch.save(found, out / f"{kind}-{name}-{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
