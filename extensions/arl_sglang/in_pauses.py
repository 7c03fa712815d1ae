"""The transport of a version to servers that join no group with the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentgym_rl.weights import Prepared, Publication, Transport, stage_tensors

if TYPE_CHECKING:
    from torch import Tensor


class InPauses(Transport):
    """The transports `nccl` (experimental: not measured) and `ipc`: each server receives the
    version in its own pause, by a broadcast between GPUs or by handles of GPU memory in
    requests."""

    def __init__(self, way: Literal["nccl", "ipc"], *, model_dir: Path | None):
        self._way: Literal["nccl", "ipc"] = way
        self._model_dir = model_dir
        self._version: Prepared | None = None

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self._version = Prepared(tensors, self._model_dir)

    def stage(self, publication: Publication, *, deadline: float) -> None:
        assert self._version is not None
        stage_tensors(publication, self._version, way=self._way, deadline=deadline)
