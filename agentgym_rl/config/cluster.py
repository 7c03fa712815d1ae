"""The sections `cluster` and `logging`: the processes of a run, and their output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Protocol

from pydantic import Field

from agentgym_rl.core import (
    OneOf,
    PlaceKeys,
    Section,
    Sections,
    extension_names,
    load_extension,
    with_added_keys,
)

PROCESSES = "processes"
"""The group of entry points with the kinds of clusters (cluster/processes.py)."""


class ClusterKind(Protocol):
    """The properties of a kind of clusters by which configurations are checked."""

    here: bool
    """True if every process runs on this machine."""
    gives_out_devices: bool
    """True if the cluster chooses the devices of processes, at most one for each."""
    submits: bool
    """True if `arl train` submits a job, which then does the run."""

    def conflicts(self, config: Sections) -> Iterator[str]:
        """Yield an error for each part of a configuration that does not work there."""
        ...

    def has_gpus(self, cluster: ClusterConfig) -> bool | None:
        """Return whether the processes get GPUs there; None: as this machine has some."""
        ...


@with_added_keys("cluster")
class ClusterConfig(PlaceKeys):
    """The places of the processes."""

    type: Annotated[str, OneOf(lambda: _types(), usual="local", group=PROCESSES)] = "local"
    """The type. `local`: on this machine, as children of `arl train`. `ray`: engines and trainer
    ranks on the nodes of a Ray cluster. `slurm`: a job that starts Ray on its nodes and runs the
    same there. GPUs on `ray` and `slurm` are experimental: not measured yet."""
    stop_timeout_s: float = Field(default=5.0, gt=0)
    """The time that a child has to end by itself before it is killed."""

    @property
    def kind(self) -> ClusterKind:
        """Return the registered kind of clusters."""
        return load_extension(PROCESSES, self.type)

    def conflicts(self, config: Sections) -> Iterator[str]:
        return self.kind.conflicts(config)


def _types() -> list[str]:
    return sorted({"local", *extension_names(PROCESSES)})


@with_added_keys("logging")
class LoggingConfig(Section):
    """The output for the user."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that the log shows."""
    progress: Literal["auto", "rich", "plain", "none"] = "auto"
    """The view of the progress; `auto`: a live view on a terminal, plain lines elsewhere."""
    tokens: bool = True
    """The switch to keep proximal log-probs and advantages of trained tokens, for `arl inspect`:
    8 bytes each."""
