"""`cluster` and `logging`: processes, and what of them is seen."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section


class ClusterConfig(Section):
    """Where the processes run."""

    type: Literal["local", "ray", "slurm"] = "local"
    """`local`: on this machine, as children of `arl train`. `ray`: engines and trainer ranks on the
    nodes of a Ray cluster. `slurm`: as a job that starts Ray on the nodes it gets, and runs the
    same there. GPUs on `ray` and `slurm` are experimental: not measured yet."""
    address: str = "auto"
    """Of the Ray cluster, HOST:PORT; `auto`: the one that this machine is a node of."""
    nodes: int = Field(default=1, ge=1)
    """Nodes that Ray has to have before the run begins; nodes of the Slurm job."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for that many nodes, for room on them, and for a process of Ray's to start."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment of the processes: `env_vars` for all of them, `py_modules` with the
    wheel of this package where nodes do not have it."""
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs to ask of Slurm on each node."""
    sbatch: tuple[str, ...] = ()
    """More options of sbatch, as in ["--partition=gpu", "--time=8:00:00"]."""
    colocated: bool = False
    """Engines and trainer ranks share devices: engines sleep while ranks train, and ranks keep what
    they have in memory of the CPU while engines sample. On GPUs experimental: never run."""
    sleep_level: Literal[1, 2] = 1
    """What becomes of the weights of an engine that sleeps: 1 they are kept in memory of the CPU;
    2 they are forgotten, as new ones come before it samples again."""
    allocation: str = ""
    """How many of each, in one line: `vllm:d4t2+fsdp:d8` are four vLLM servers of two GPUs each and
    eight trainer ranks; `vllm:d2|fsdp:d2` share two GPUs. Sets engine.type, engine.num_servers,
    engine.tensor_parallel_size, trainer.num_ranks and `colocated` (see config/allocation.py)."""
    stop_timeout_s: float = Field(default=5.0, gt=0)
    """Time a child has to end by itself before it is killed."""


class LoggingConfig(Section):
    """What the user sees."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    progress: Literal["auto", "rich", "plain", "none"] = "auto"
    """`auto`: a live view on a terminal, plain lines elsewhere."""
    plot: bool = True
    """Write `reward.png` when the run ends."""
    tokens: bool = True
    """Keep proximal log-probs and advantages of trained tokens, for `arl inspect`: 8 bytes each."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Experiment trackers that get the metrics, too; each is an extra of the package."""
    project: str = Field(default="agentgym-rl", min_length=1)
    """The project of the trackers that have projects; the run is called as its folder is."""
