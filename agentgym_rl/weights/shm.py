"""Transport `shm`: a safetensors file in a folder that trainer and engines both see."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from .engine_routes import RemoteEngine
from .files import write_version
from .transport import Publication, Transport


class SharedFiles(Transport):
    """Versions as files of `folder` (see files.py); whoever made the folder removes old ones."""

    def __init__(self, folder: Path, *, incarnation: int = 0):
        self._folder = folder
        self._incarnation = incarnation
        self.path = Path()
        """The file of the version prepared last."""

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self.path = write_version(self._folder, version, tensors, incarnation=self._incarnation)

    def stage(self, publication: Publication, *, deadline: float) -> None:
        # What a finish may wait for staging; it need not, since staging is waited for here.
        init = {"init_info": {"timeout_s": publication.deadline - time.monotonic()}}
        update = {"update_info": {"path": str(self.path)}}

        def stage(engine: RemoteEngine) -> None:
            # Each time: an engine may have been restarted behind the same URL.
            engine.post("/init_weight_transfer_engine", init, deadline=deadline)
            engine.start_update(deadline=deadline)
            engine.post("/update_weights", update, deadline=deadline)
            publication.wait_staged(engine, deadline=deadline)

        publication.each(stage)
