"""Who spent which time on what: intervals of CLOCK_MONOTONIC seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

# Of every run; `reference` comes on top where there is a reference model, `values` and `critic`
# where there is a critic.
PHASES = (
    "rollout_wait",
    "proximal",
    "forward_backward",
    "optimizer",
    "weight_sync",
    "checkpoint",
)


class Phases:
    """Collects the intervals of one step."""

    def __init__(self) -> None:
        self.intervals: list[tuple[str, float, float]] = []
        """(phase, start, end), in order of their end."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block; one that raises is not recorded."""
        start = time.monotonic()
        yield
        self.intervals.append((name, start, time.monotonic()))

    def seconds(self) -> dict[str, float]:
        """`time/<phase>` of every phase, 0 where one of those of any run did not happen."""
        total: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        for name, start, end in self.intervals:
            total[name] = total.get(name, 0.0) + end - start
        return {f"time/{name}": seconds for name, seconds in total.items()}
