"""Hand a new policy version to every engine while it generates, with a short pause.

The engines load it beside the weights they serve, all at once; then they swap it in, one after
the other, each in a pause of its own. An engine that fails is left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from agentgym_rl.core.engine import Interrupt, version_label
from agentgym_rl.core.errors import WeightsError

from .engine_routes import Pause
from .transport import Publication, Transport

_STAGING_SHARE = {"keep": 0.75, "recompute": 0.75, "abort": 0.75, "wait": 0.5}
"""Of the time, at most this much is for staging: an engine that hangs there must leave the others
time to swap, and to drain first where that is waited for."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication took, and who has it."""

    seconds: float
    """From the first request to the last engine's confirmation."""
    stage_s: float
    """Of these: until the last engine had staged, sampling meanwhile."""
    pauses: Mapping[str, Pause]
    """By name of each engine that confirmed the version, when it sampled nothing: from its /pause
    (`wait`: from its answer, since it samples until then) to the answer of its /resume."""
    failed: Mapping[str, str]
    """Name of every other one, and what went wrong."""

    @property
    def served(self) -> tuple[str, ...]:
        """Names of the engines that confirmed the version."""
        return tuple(self.pauses)

    @property
    def pause_s(self) -> float:
        """Longest time one engine sampled nothing."""
        return max(end - start for start, end in self.pauses.values())


class PublicationFailed(WeightsError):
    """No engine took a version; `failed` says why, by name."""

    def __init__(self, version: int, failed: Mapping[str, str]):
        super().__init__(version, failed)
        self.version = version
        self.failed = failed

    def __str__(self) -> str:
        reasons = "; ".join(self.failed.values())
        return f"no engine took policy version {self.version}: {reasons}"


class Publisher:
    """Publishes versions over a transport.

    `interrupt` says what a pause does with requests in flight. `timeout_s` bounds a publication
    (weights.update_timeout_s), but for the resumption of engines that failed while paused.
    `polls_staging`: the engines are of the kind that answers /update_weights at once, stages
    beside it, and is asked how far it is. `may_sleep`: engines may be asleep but for their weights,
    and stay so.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        interrupt: Interrupt,
        timeout_s: float,
        polls_staging: bool,
        incarnation: int = 0,
        may_sleep: bool = False,
    ):
        self._transport = transport
        self._interrupt: Interrupt = interrupt
        self._timeout_s = timeout_s
        self._polls_staging = polls_staging
        self._incarnation = incarnation
        self._may_sleep = may_sleep

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Have a version ready for any number of `publish`; the tensors must not change.

        Raises:
            WeightsError: no space to write it, for one.
        """
        self._transport.prepare(version, tensors)

    def publish(
        self, engines: Mapping[str, str], version: int, *, timeout_s: float | None = None
    ) -> Published:
        """Make `engines` (URLs by name) serve the version prepared last.

        Raises:
            PublicationFailed: none does. Engines that were paused have been asked to resume.
        """
        start = time.monotonic()
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        publication = Publication(
            engines,
            label=version_label(version, incarnation=self._incarnation),
            interrupt=self._interrupt,
            polls_staging=self._polls_staging,
            deadline=start + timeout_s,
            may_sleep=self._may_sleep,
        )
        staging_s = timeout_s * _STAGING_SHARE[self._interrupt]
        self._transport.stage(publication, deadline=start + staging_s)
        staged = time.monotonic()
        # All have staged before one swaps: the fleet serves two versions for a moment only.
        pauses = self._transport.swap(publication)
        if not pauses:
            raise PublicationFailed(version, publication.failed)
        return Published(
            seconds=time.monotonic() - start,
            stage_s=staged - start,
            pauses=pauses,
            failed=publication.failed,
        )

    def close(self) -> None:
        """Let go of what the transport holds between publications."""
        self._transport.close()
