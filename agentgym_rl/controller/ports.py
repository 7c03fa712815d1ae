"""Who the controller works with, as it sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol


class Publications(Protocol):
    """Who must get a policy version, and what came of it (see fleet.Fleet)."""

    @property
    def wanted(self) -> bool:
        """Whether a server waits for a publication to bring it to the current version."""
        ...

    async def begin_publication(self, version: int) -> dict[str, str]: ...

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None: ...


class Devices(Protocol):
    """Whose turn it is on devices that engines and ranks share (see colocation.Colocation)."""

    async def ranks_started(self) -> None: ...

    async def to_ranks(self, *, lead: bool, wanted: Callable[[], bool]) -> bool: ...

    def slept(self) -> dict[str, list[tuple[str, float, float]]]: ...


class Evaluations(Protocol):
    """Who evaluates versions on schedule (see eval_queue.EvalQueue)."""

    def owed(self, version: int) -> bool: ...

    def began(self) -> None: ...

    def published(self, version: int, parameters: str, *, due: bool) -> None: ...
