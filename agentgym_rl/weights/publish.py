"""The publication of a new policy version to every engine while it generates, with a short pause.

All engines load it at the same time, in addition to the weights that they serve. Then they swap it
in, each in its own pause, some at a time. An engine that fails is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from agentgym_rl.core import Interrupt, Published, version_label

from .engine_routes import Pause, RemoteEngine
from .transport import Publication, Recognize, Transport, as_it_is

_STAGING_SHARE = {"keep": 0.75, "recompute": 0.75, "abort": 0.75, "wait": 0.5}
"""The largest share of the time for staging: if an engine hangs there, the others must still have
time to swap and, with "wait", to drain first."""


@dataclass(slots=True, kw_only=True)
class Publisher:
    """A publisher of versions over a transport: `prepare`, `stage`, then a `swap` of each wave."""

    transport: Transport
    interrupt: Interrupt
    """The effect of a pause on requests in flight."""
    timeout_s: float
    """The time limit of a publication, in seconds (weights.update_timeout_s); resuming engines that
    failed while paused may take longer."""
    polls_staging: bool
    """Whether the engines answer /update_weights at once, stage after the reply, and are polled for
    progress."""
    incarnation: int = 0
    may_sleep: bool = False
    """Whether engines may be asleep, with only their weights awake, and stay asleep."""
    recognize: Recognize = as_it_is
    """The function that returns the client of an engine whose kind is not known yet; by default,
    all have the usual routes."""
    known: dict[str, RemoteEngine] = field(default_factory=dict)
    """The engines of the last publication, by name."""
    _publication: Publication | None = None
    _share_s: float = 0.0

    def prepare(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Prepare a version for any number of publications; the tensors must not change.

        Raises:
            WeightsError: it cannot be prepared (for example, there is no space to write it).
        """
        self.transport.prepare(version, tensors)

    def stage(
        self,
        engines: Mapping[str, str],
        version: int,
        *,
        timeout_s: float | None = None,
        same_as: int | None = None,
    ) -> Published:
        """Load the version that was prepared last into `engines` (URLs by name), in addition to the
        weights that they serve; return which must `swap`, and which failed.

        `timeout_s` limits the complete publication. `same_as` is an earlier version with the same
        weights: engines that serve it only get the new label, without a transfer or a pause.
        """
        start = time.monotonic()
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        publication = Publication(
            engines,
            label=version_label(version, incarnation=self.incarnation),
            interrupt=self.interrupt,
            polls_staging=self.polls_staging,
            deadline=start + timeout_s,
            may_sleep=self.may_sleep,
            known=self.known,
            recognize=self.recognize,
        )
        renamed = self._renamed(publication, same_as)
        others = {name: it for name, it in publication.alive.items() if name not in renamed}
        publication.alive = others
        staging_s = timeout_s * _STAGING_SHARE[self.interrupt]
        if others:
            self.transport.stage(publication, deadline=start + staging_s)
        staged = time.monotonic()
        # All engines stage before the first one swaps, so that the fleet serves two versions only
        # for a moment.
        waves = self.transport.waves(publication)
        # An equal share of the time for each: an engine that hangs takes none from the others.
        self._share_s = (publication.deadline - staged) / max(1, len(waves))
        self._publication = publication
        failed = self._failed(publication, engines)
        return Published(staged - start, staged - start, renamed, failed, waves)

    def swap(self, names: Sequence[str]) -> Published:
        """Make the engines of the next wave of `stage` serve the version."""
        publication, start = self._publication, time.monotonic()
        assert publication is not None
        pauses = self.transport.swap(publication, names, deadline=start + self._share_s)
        failed = self._failed(publication, names)
        return Published(time.monotonic() - start, 0.0, pauses, failed)

    def _failed(self, publication: Publication, names: Iterable[str]) -> dict[str, str]:
        """Forget those of the engines `names` that have failed; return the reasons."""
        failed = {name: why for name, why in publication.failed.items() if name in set(names)}
        for name in failed.keys() & self.known.keys():
            self.known.pop(name).close()  # its kind and state may have changed
        return failed

    def _renamed(self, publication: Publication, same_as: int | None) -> dict[str, Pause]:
        """Give the new label to engines that serve `same_as`; return their empty pauses."""
        if same_as is None:
            return {}
        before = version_label(same_as, incarnation=self.incarnation)
        done = publication.each(
            lambda engine: engine.rename(before, publication.label, deadline=publication.deadline)
        )
        now = time.monotonic()
        return {name: (now, now) for name, is_renamed in done.items() if is_renamed}

    def close(self) -> None:
        """Release the resources that the transport holds between publications."""
        self.transport.close()
        for engine in self.known.values():
            engine.close()
