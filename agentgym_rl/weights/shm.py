"""The transport `shm`: a safetensors file in a folder that trainer and engines both access."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from .engine_routes import RemoteEngine
from .files import write_version
from .transport import Publication, Transport


class SharedFiles(Transport):
    """A transport by files in `folder` (see files.py); the folder's creator removes old ones."""

    def __init__(self, folder: Path, *, incarnation: int = 0):
        self._folder = folder
        self._incarnation = incarnation
        self.path = Path()
        """The file of the version that was prepared last."""

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self.path = write_version(self._folder, version, tensors, incarnation=self._incarnation)

    def stage(self, publication: Publication, *, deadline: float) -> None:
        # The longest that a finish may wait for staging; the wait below makes that unnecessary.
        init = {"init_info": {"timeout_s": publication.deadline - time.monotonic()}}
        update = {"update_info": {"path": str(self.path)}}

        def stage(engine: RemoteEngine) -> None:
            # Initialize each time: an engine may have been restarted behind the same URL.
            engine.post("/init_weight_transfer_engine", init, deadline=deadline)
            engine.start_update(deadline=deadline)
            engine.post("/update_weights", update, deadline=deadline)
            publication.wait_staged(engine, deadline=deadline)

        publication.each(stage)
