"""A rank of several that loads a model from its slices: the bytes that it takes meanwhile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from arl_objectives.critic import ValueModel
from prompt_frees import wait_for_frees
from test_memory import peak_bytes

from agentgym_rl.trainer import Policy, join_world
from agentgym_rl.trainer.sharding import local

WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "policy": (Policy, {}),
    "critic": (ValueModel, {}),
    "frozen": (Policy, {"frozen": True, "compute_dtype": "bfloat16"}),
}
"""What a rank loads, and how."""


def main(meeting: str, rank: str, size: str, model_dir: str, out: str) -> None:
    torch.set_num_threads(1)
    wait_for_frees()
    found: dict[str, tuple[int, int]] = {}
    place: Any = {"rank": int(rank), "size": int(size), "rendezvous": meeting, "timeout_s": 300}
    with join_world(**place) as world:
        for name, (kind, how) in WAYS.items():
            models: list[Any] = []

            def load(kind: Any = kind, how: Any = how, models: Any = models) -> None:
                models.append(kind.load(Path(model_dir), world, **how))

            peak = peak_bytes(load)
            found[name] = peak, sum(local(p).nbytes for p in models[0].model.parameters())
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
