"""The records without content that the real rollout and controller read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from agentgym_rl.core.batch import StepReport
from agentgym_rl.core.group import Group
from agentgym_rl.core.task import Task, TaskSource
from agentgym_rl.core.trajectory import NOT_SAMPLED, Row, Trajectory
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.metrics import MetricsFile
from agentgym_rl.storage.phases import PhasesFile, StepPhases


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRow(Row):
    """A row of some length; each array repeats one number without using memory for it."""

    trained: int = 0

    @property
    def num_trained(self) -> int:
        return self.trained


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedTrajectory(Trajectory):
    """An episode of one row."""

    versions: Sequence[int] = ()

    @property
    def num_trained(self) -> int:
        return self.rows[0].num_trained

    @property
    def trained_versions(self) -> list[int]:
        return list(self.versions)

    @property
    def oldest_version(self) -> int | None:
        return min(self.versions) if self.num_trained else None


@lru_cache(maxsize=100_000)
def row(tokens: int, trained: int) -> SimulatedRow:
    """Return a row of `tokens` tokens, `trained` of which train."""

    def all(value: float, dtype: type[np.generic]) -> Any:
        return np.broadcast_to(np.asarray(value, dtype), (tokens,))

    return SimulatedRow(
        tokens=all(0, np.int32),
        loss_mask=all(0, np.bool_),
        behavior_logprobs=all(0, np.float32),
        policy_versions=all(NOT_SAMPLED, np.int32),
        admitted_versions=all(NOT_SAMPLED, np.int32),
        temperatures=all(0, np.float32),
        turn_ids=all(-1, np.int32),
        times_s=all(0, np.float64),
        trained=trained,
    )


class NoTasks(TaskSource):
    """An endless source of tasks that consist of their number only."""

    def __getitem__(self, index: int, /) -> Task:
        return Task(id=str(index), seed=index)


class NoLog(EpisodeLog):
    """A log that keeps nothing: simulated runs are not resumed."""

    def __init__(self) -> None:
        pass

    async def add_member(
        self, member: Trajectory, *, task: Task | None = None, task_index: int = -1
    ) -> None:
        pass

    async def add_group(
        self, task: Task, task_index: int, group: Group, *, dropped: str = ""
    ) -> None:
        pass

    async def drop(self, groups: Sequence[Group], cause: str) -> None:
        pass

    async def lease(self, groups: Sequence[Group], step: int) -> None:
        pass

    async def publish(self, report: StepReport, metrics: Mapping[str, float | None]) -> None:
        pass


class NoMetrics(MetricsFile):
    """A metrics file that is not written: the controller has the history."""

    def __init__(self) -> None:
        pass

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        pass


class NoPhases(PhasesFile):
    """A phases file that is not written: the simulated trainer keeps its own steps."""

    def __init__(self) -> None:
        pass

    def write(self, found: StepPhases) -> None:
        pass
