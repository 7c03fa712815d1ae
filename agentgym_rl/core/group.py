"""The group: the finished episodes of one task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .trajectory import Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The finished episodes of one task; all of them are trained, or none."""

    group_id: str
    task_id: str
    members: Sequence[Trajectory]
    weight: float = 1.0
    """The weight of the task: multiplies the advantages of the group's episodes."""
    index: int = 0
    """The position of the group in the order of admission."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The data of the task."""
    oldest_version: int | None = field(init=False)
    """The lowest policy version among trained tokens; None when no token trains."""

    def __post_init__(self) -> None:
        found = [t.oldest_version for t in self.members]
        oldest = min((version for version in found if version is not None), default=None)
        object.__setattr__(self, "oldest_version", oldest)

    def staleness(self, version: int) -> int:
        """Return the age in versions at `version`; 0 for a group without trained tokens."""
        oldest = self.oldest_version
        return 0 if oldest is None else version - oldest


def by_env(episodes: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Return the episodes by the id of their environment, sorted by id, without episodes that have
    no id."""
    found: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        if episode.env_id:
            found.setdefault(episode.env_id, []).append(episode)
    return dict(sorted(found.items()))
