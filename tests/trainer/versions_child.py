"""A rank of several that writes versions of a policy: as they are, unchanged, changed, and with a
disk that fails on one rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from agentgym_rl.config import TrainerConfig, load_config
from agentgym_rl.core import WeightsError
from agentgym_rl.trainer import Policy, join_world
from agentgym_rl.trainer.publication import VersionWriter
from agentgym_rl.weights import fingerprint, parts


def main(model_dir: str, out: str, rank: str, size: str, dtype: str) -> None:
    torch.set_num_threads(1)
    folder = Path(out)
    meeting = f"file://{out}/meet"
    with join_world(rank=int(rank), size=int(size), rendezvous=meeting, timeout_s=120) as world:
        policy = Policy.load(Path(model_dir), world, trainer=TrainerConfig(num_ranks=int(size)))
        engine = load_config(overrides={"engine.dtype": dtype}).own_engine
        config = Path(model_dir) / "config.json"
        files = VersionWriter(policy, folder / "shm", engine=engine, config=config)
        said = [files.write(0).parameters, files.write(1).parameters]
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if "layers.1." in name:
                    parameter.add_(0.125)
        said += [files.write(2, store=False).parameters, files.write(2).parameters]
        state = policy.trained_state()
        said.append(fingerprint(state) if world.rank == 0 else "")
        failing = parts.PartsWriter.write
        if world.rank == world.size - 1:

            def full(self: parts.PartsWriter, name: str, tensor: torch.Tensor) -> None:
                raise OSError("no space left on device")

            parts.PartsWriter.write = full
        try:
            files.write(3)
        except WeightsError as error:
            said.append(str(error))
        parts.PartsWriter.write = failing
        said.append(files.write(4).parameters)
        (folder / f"said-{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
