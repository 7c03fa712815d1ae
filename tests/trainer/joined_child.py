"""A rank of several that publishes and exports a mixture of which transformers joins the experts,
and counts the most bytes of tensors that it has beside its state (test_publication.py).

    python joined_child.py MODEL OUT RANK SIZE MESH BUDGET

writes to OUT/RANK.json the bytes of each, and what was written. BUDGET is the size of a piece of
experts."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from prompt_frees import wait_for_frees
from test_memory import peak_bytes

from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.trainer import Policy, export_policy, join_world, publication
from agentgym_rl.trainer.publication import VersionWriter
from agentgym_rl.weights import StoredVersion, source


class Latest:
    """In place of the thread that writes: each piece is written at once, where it is counted, and
    held until the next one is there, as by the slowest of threads."""

    def __init__(self, *given: object) -> None:
        self._held: tuple[object, ...] = ()

    def __enter__(self) -> Latest:
        return self

    def __exit__(self, *error: object) -> None:
        self._held = ()

    def submit(self, act: Callable[..., None], *given: object) -> Future[None]:
        """Call `act`; return that it is done."""
        act(*given)
        self._held = given
        done = Future[None]()
        done.set_result(None)
        return done


def main(model_dir: str, out: str, rank: str, size: str, mesh: str, budget: str) -> None:
    torch.set_num_threads(1)
    wait_for_frees()
    source.PART_BYTES = int(budget)
    publication.ThreadPoolExecutor = Latest  # type: ignore[misc]
    model, folder = Path(model_dir), Path(out)
    trainer = TrainerConfig(num_ranks=int(size), mesh=mesh)  # type: ignore[call-arg]
    place: dict[str, Any] = {"rank": int(rank), "size": int(size), "unit": trainer.ranks_per_row}
    said: dict[str, Any] = {}
    with join_world(**place, rendezvous=f"file://{out}/meet", timeout_s=120) as world:
        policy = Policy.load(model, world, trainer=trainer)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.25).add_(0.125)

        def counted(name: str, act: Callable[[], object]) -> None:
            policy.pieces()
            said[f"{name} bytes"] = peak_bytes(act)

        for dtype in ("float32", "bfloat16"):
            engine = load_config(
                overrides={"engine.type": "vllm", "engine.dtype": dtype}
            ).own_engine
            (folder / dtype).mkdir(exist_ok=True)
            writer = VersionWriter(policy, folder / dtype, engine=engine)
            counted(dtype, lambda writer=writer: writer.write(0))
            digests = StoredVersion(folder / dtype / "v0").digests
            said[dtype] = sorted(digests.items())
            said[f"parameters {dtype}"] = writer.write(1).parameters
        counted("export", lambda: export_policy(folder / "export", policy, model_dir=model))
        world.barrier()
        data = (folder / "export" / "model.safetensors").read_bytes()
        said["export"] = hashlib.sha256(data).hexdigest()
    (folder / f"{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
