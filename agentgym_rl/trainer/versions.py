"""Policy versions on their way out of the trainer (rank 0)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from agentgym_rl.config import WeightsConfig
from agentgym_rl.errors import WeightsError
from agentgym_rl.weights.files import prune, write_version
from agentgym_rl.weights.publish import Publisher


class VersionsOut:
    """Writes each version to the shared folder, publishes it, and removes old ones.

    `keep_dir`: every version is kept there too, as `v-N.safetensors`.
    """

    def __init__(
        self,
        config: WeightsConfig,
        folder: Path,
        publisher: Publisher,
        *,
        keep_dir: Path | None = None,
        incarnation: int = 0,
    ):
        self._keep_versions = config.keep_versions
        self._folder = folder
        self._publisher = publisher
        self._keep_dir = keep_dir
        self._incarnation = incarnation

    def publish(self, state: Mapping[str, Tensor], version: int) -> float:
        """Make every engine serve `state` as `version`; longest pause of an engine in seconds.

        Raises:
            WeightsError: it could not be written, or an engine did not take it.
        """
        path = write_version(self._folder, version, state, incarnation=self._incarnation)
        published = self._publisher.publish(path, version)
        prune(self._folder, self._keep_versions)
        if self._keep_dir is not None:
            _keep(path, self._keep_dir / f"v-{version}.safetensors")
        return published.pause_s


def _keep(path: Path, kept: Path) -> None:
    beside = kept.with_name(f".{kept.name}.tmp")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, beside)
        beside.rename(kept)
    except OSError as error:
        raise WeightsError(f"cannot keep {path.name} as {kept}: {error}") from error
