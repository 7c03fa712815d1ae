"""`cluster` and `logging`: processes, and what of them is seen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section


class ClusterConfig(Section):
    """Where the processes run: on this machine, as children of `arl train`."""

    allocation: str = ""
    """How many of each, in one line: `vllm:d4t2+fsdp:d8` are four vLLM servers of two GPUs each and
    eight trainer ranks. Sets engine.type, engine.num_servers, engine.tensor_parallel_size and
    trainer.num_ranks (see config/allocation.py)."""
    stop_timeout_s: float = Field(default=5.0, gt=0)
    """Time a child has to end by itself before it is killed."""


class LoggingConfig(Section):
    """What the user sees."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    progress: Literal["auto", "rich", "plain", "none"] = "auto"
    """`auto`: a live view on a terminal, plain lines elsewhere."""
    plot: bool = True
    """Write `reward.png` when the run ends."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Experiment trackers that get the metrics, too; each is an extra of the package."""
    project: str = Field(default="agentgym-rl", min_length=1)
    """The project of the trackers that have projects; the run is called as its folder is."""
