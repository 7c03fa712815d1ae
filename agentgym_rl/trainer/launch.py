"""The processes of trainer ranks, specified but not run (`cluster/` starts them)."""

from __future__ import annotations

import sys
from pathlib import Path

from agentgym_rl.cluster import ProcessSpec
from agentgym_rl.config import TrainerConfig, may_use_gpu

_IMPORTS = ("agentgym_rl.trainer.main", "torch._dynamo")  # optimizers import the latter


def trainer_processes(
    config: TrainerConfig,
    config_file: Path,
    *,
    run_dir: Path,
    weights_dir: Path,
    controller_url: str,
    rendezvous: str,
    token: str,
    incarnation: int = 0,
    resume: Path | None = None,
    served: int | None = None,
    splits: bool = False,
) -> list[ProcessSpec]:
    """Return one process per rank; the ranks report readiness to the controller and end by
    themselves.

    `resume` is the checkpoint that they begin with instead of the configured model. `served` is the
    version that engines already have from earlier ranks of the same run. `splits`: micro-batches
    have half as many tokens.
    """
    env = {**rank_environment(config), "ARL_TOKEN": token}
    return [
        ProcessSpec(
            name=f"trainer-{rank}",
            argv=[
                *(sys.executable, "-m", "agentgym_rl", "trainer"),
                *("--config", str(config_file)),
                *("--run", str(run_dir)),
                *("--weights", str(weights_dir)),
                *("--controller", controller_url),
                *("--rank", str(rank)),
                *("--rendezvous", rendezvous),
                *("--incarnation", str(incarnation)),
                *(("--resume", str(resume)) if resume else ()),
                *(("--served", str(served)) if served is not None else ()),
                *(("--splits",) if splits else ()),
            ],
            env=env,
            finite=True,
            restartable=True,
            imports=rank_imports(config),
        )
        for rank in range(config.num_ranks)
    ]


def rank_imports(config: TrainerConfig) -> tuple[str, ...]:
    """Return the modules that a rank may be forked from; none if it may use a GPU."""
    return () if may_use_gpu(config.device) else _IMPORTS


def rank_environment(config: TrainerConfig) -> dict[str, str]:
    """Return the environment variables that a rank needs before it imports torch."""
    threads = str(config.num_threads)
    env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if config.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, config.gpus))
    return env
