"""The publication of policy versions by the trainer (rank 0), and a hash of a policy's parameters,
cheap enough to compute at every step."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from agentgym_rl.config import Config, WeightsConfig
from agentgym_rl.core.errors import WeightsError
from agentgym_rl.weights.files import summed, write_version
from agentgym_rl.weights.gloo import Broadcasts
from agentgym_rl.weights.publish import PublicationFailed, Published, Publisher
from agentgym_rl.weights.transport import InPauses, SharedFiles, Transport
from agentgym_rl.weights.vllm_native import NativeTransport

from .client import ControllerClient


def fingerprint(tensors: Mapping[str, Tensor], *, sums: bytes | None = None) -> str:
    """Return 64 bits, in hex, over names, dtypes, shapes and every bit of the tensors; `sums` is
    the result of `summed` for them, if it is known."""
    data = summed(tensors) if sums is None else sums
    return blake2b(data, digest_size=8).hexdigest()


_log = logging.getLogger(__name__)

_BETWEEN_TRIES_S = 0.2


class VersionsOut:
    """A publisher of versions, which also keeps and removes them as configured in `weights`.

    `restart_s` is the extra time of a server that has to be restarted first. With
    `keep_versions = "all"`, `kept` is the folder that has them permanently.
    """

    def __init__(
        self,
        publisher: Publisher,
        weights: WeightsConfig,
        *,
        restart_s: float,
        client: ControllerClient,
        kept: Path,
    ):
        self._publisher = publisher
        self._weights = weights
        self._client = client
        self._kept = kept
        self._begin_timeout_s = restart_s + weights.update_timeout_s
        self._last: tuple[int, str] | None = None
        """The version that was published last, and the fingerprint of its weights."""

    @property
    def longest_s(self) -> float:
        """Return the longest time that `publish` takes, in seconds."""
        # plus the time to write the file
        return self._begin_timeout_s + 2 * self._publisher.timeout_s

    @property
    def keeps_all(self) -> bool:
        """Return whether every version, the first one included, is kept in the run's folder."""
        return self._weights.keep_versions == "all"

    def keep(
        self,
        state: Mapping[str, Tensor],
        version: int,
        *,
        sums: bytes | None = None,
        same_as: int | None = None,
    ) -> None:
        """Write a version to the run's folder, permanently; a link if it is the `same_as` an
        earlier one.

        Raises:
            WeightsError: it could not be written.
        """
        path = self._kept / f"v-{version}.safetensors"
        try:
            self._kept.mkdir(parents=True, exist_ok=True)
            first = self._kept / f"v-{same_as}.safetensors"
            if same_as is not None and first.exists():
                path.unlink(missing_ok=True)
                return path.symlink_to(first.resolve().name)
        except OSError as error:
            raise WeightsError(f"cannot keep policy version {version}: {error}") from error
        incarnation = self._publisher.incarnation
        write_version(self._kept, version, state, incarnation=incarnation, sums=sums).rename(path)

    def publish(self, state: Mapping[str, Tensor], version: int, *, sums: bytes) -> Published:
        """Make engines serve `state`, with these `sums`, as `version`; tell the controller which
        engines serve it.

        If the weights are those of the version published last, engines that serve it only learn
        the new number: nothing is written or transferred, and nothing pauses.

        If no engine serves it, try again, for at most weights.update_timeout_s in all. The waits
        for an available engine are not included; their total has its own bound.

        Raises:
            WeightsError: it could not be written, or no engine took it.
            RunEnding, TrainerError: see `ControllerClient.begin_publication`.
        """
        found = fingerprint(state, sums=sums)
        last, self._last = self._last, None
        same_as = last[0] if last and last[1] == found and last[0] < version else None
        if self.keeps_all:
            self.keep(state, version, sums=sums, same_as=same_as)
        if same_as is None:
            self._publisher.prepare(version, state, sums=sums)
        else:
            self._publisher.transport.prepare_same(version)
        left_s, wait_s = self._publisher.timeout_s, self._begin_timeout_s
        while True:
            asked = time.monotonic()
            engines = self._client.begin_publication(version, timeout_s=wait_s)
            start = time.monotonic()
            wait_s -= start - asked
            try:
                published = self._publisher.publish(
                    engines, version, timeout_s=left_s, same_as=same_as
                )
                break
            except PublicationFailed as failure:
                self._client.end_publication(version, served=(), failed=failure.failed)
                same_as = None  # an engine that cannot be told gets the weights
                time.sleep(_BETWEEN_TRIES_S)
                left_s -= time.monotonic() - start
                if left_s <= 0:
                    raise
                _log.warning("%s; trying again for %.0f s", failure, left_s)
        self._client.end_publication(version, served=published.served, failed=published.failed)
        self._last = version, found
        self._publisher.transport.tidy()
        return published

    def close(self) -> None:
        """Release the resources that are held between publications."""
        self._publisher.close()


def make_publisher(
    config: Config, folder: Path, *, model_dir: Path, incarnation: int = 0
) -> Publisher:
    """Return the publisher of the configured run, which keeps every version that it prepares;
    `folder` is the run's weights folder (transport shm), `model_dir` that of its model.

    Raises:
        ConfigError: the transport cannot work here.
    """
    return Publisher(
        transport=_transport(config, folder, model_dir, incarnation),
        interrupt=config.rollout.interrupt,
        timeout_s=config.weights.update_timeout_s,
        polls_staging=config.own_engine.type != "embedded",
        incarnation=incarnation,
        may_sleep=config.cluster.colocated,
    )


def _transport(config: Config, folder: Path, model_dir: Path, incarnation: int) -> Transport:
    """Return the transport of `weights.transport`.

    Raises:
        ConfigError: the transport cannot work here.
    """
    weights = config.weights
    match weights.transport:
        case "shm":
            keep = weights.num_published
            return SharedFiles(folder, model_dir=model_dir, keep=keep, incarnation=incarnation)
        case "gloo":
            return Broadcasts(timeout_s=weights.update_timeout_s, model_dir=model_dir)
        case backend if config.own_engine.type == "vllm":
            return NativeTransport(backend, num_ranks=config.trainer.num_ranks)
        case backend:
            return InPauses(backend, model_dir=model_dir)
