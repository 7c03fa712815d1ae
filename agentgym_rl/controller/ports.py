"""The protocols of the objects that the controller works with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol


class Publications(Protocol):
    """The publications of policy versions to the servers that must get them (see fleet.Fleet)."""

    @property
    def wanted(self) -> bool:
        """Return whether a server waits for a publication to bring it to the current version."""
        ...

    async def begin_publication(self, version: int) -> dict[str, str]: ...

    async def end_publication(
        self, version: int, *, served: Iterable[str], failed: Mapping[str, str]
    ) -> None: ...


class Devices(Protocol):
    """The turns on devices that engines and trainer ranks share (see colocation.Colocation)."""

    async def ranks_started(self) -> None: ...

    async def to_ranks(self, *, lead: bool, wanted: Callable[[], bool]) -> bool: ...

    def slept(self) -> dict[str, list[tuple[str, float, float]]]: ...


class Evaluations(Protocol):
    """The scheduled evaluations of policy versions (see evaluate/queue.py)."""

    def owed(self, version: int) -> bool: ...

    def began(self) -> None: ...

    def published(self, version: int, parameters: str, *, due: bool) -> None: ...
