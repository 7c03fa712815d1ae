"""The additional methods of a vLLM worker (--worker-extension-cls)."""

from __future__ import annotations

from typing import Any

from .transfer import StagedTransfer


class StagingExtension:
    """A mixin of vLLM's worker class; called by `POST /collective_rpc {"method": ...}`."""

    weight_transfer_engine: Any

    def arl_staging(self) -> dict[str, str]:
        """Return `state` idle | staging | ready | failed, `error` of a failure, `path` of the
        weights.

        The state is always idle with a weight-transfer backend of vLLM's own, which does not stage.
        """
        engine = self.weight_transfer_engine
        if isinstance(engine, StagedTransfer):
            return engine.status()
        return {"state": "idle", "error": "", "path": ""}
