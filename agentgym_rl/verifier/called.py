"""What came of a call, and what the pool counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["done", "error", "timeout", "crash", "memory"]
"""`done`: the function returned. `error`: it raised. The other three: it did not return in time,
its process died, or it wanted more memory than there is; each of them twice."""


@dataclass(frozen=True, slots=True)
class Called:
    """What came of a call."""

    status: Status
    value: Any = None
    """What the function returned, through msgpack: tuples have become lists."""
    error: str = ""
    """Unless `done`: of `error` the type, the words and the last lines of the traceback."""
    ms: float = 0.0
    """Of the last attempt, from its dispatch to a free worker on."""
    attempts: int = 1


@dataclass
class VerifierStats:
    """What a pool did."""

    calls: int = 0
    """That came to an end (not those cancelled)."""
    statuses: Counter[str] = field(default_factory=Counter[str])
    """Calls by how they ended."""
    retries: int = 0
    """Second attempts, in a fresh worker."""
    cancelled: int = 0
    workers: int = 0
    """Started so far."""
    queue_s: float = 0.0
    """Waits of calls for a free worker, their sum."""
    queue_max_s: float = 0.0

    @property
    def timeouts(self) -> int:
        return self.statuses["timeout"]

    @property
    def crashes(self) -> int:
        """Memory limits included."""
        return self.statuses["crash"] + self.statuses["memory"]
