"""The recovery of an ended run from its log (episode_log.py) and its newest checkpoint.

The checkpoint records the batches on which its weights were trained. The log has the groups that
were leased to later batches, and the same groups are trained again. So the surviving weights are
trained exactly once on each group that was leased to the trainer, and all other groups wait, or are
played again:

    groups of leased steps ≥ the checkpoint's   trained again, at the same steps
    groups that wait                            wait
    groups of which some episodes are there     those stay, the others are played again
    groups that are not there                   played again (see `Recovered.logged`)
    tasks that were not chosen                  passed over (see `Recovered.drawn`)

Episodes are played again with the seeds they had. A crash interrupts long episodes more often than
short ones; if their tokens were drawn anew, the episodes that are trained would be too short.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from agentgym_rl.core import ConfigError, Group, Trajectory, parse_json

from .episode_log import EVALUATED
from .episode_reader import explained, open_to_read


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a group, from which later tasks are chosen."""

    index: int
    key: str
    version: int
    """The lowest policy version among the group's trained tokens."""
    reward: float
    """The mean reward of the members that train."""

    @classmethod
    def of(cls, group: Group, key: str) -> Result | None:
        """Return the result of a group; None if none of its tokens trains."""
        rewards = [member.reward for member in group.members if member.outcome.trains]
        if group.oldest_version is None or not rewards:
            return None
        return cls(group.index, key, group.oldest_version, math.fsum(rewards) / len(rewards))


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state of a run that is resumed."""

    step: int = 0
    """The number of batches on which the weights were trained, which is their policy version."""
    checkpoint: Path | None = None
    """The checkpoint of the weights; None: the run's initial weights."""
    incarnation: int = 0
    leased: Mapping[int, list[Group]] = field(default_factory=dict[int, list[Group]])
    """The batches from `step` on, each in the order in which it was sent to the trainer."""
    waiting: Sequence[Group] = ()
    begun: Mapping[str, Mapping[str, Trajectory]] = field(
        default_factory=dict[str, Mapping[str, Trajectory]]
    )
    """The episodes of groups that are not complete, by group id and episode id."""
    logged: frozenset[int] = frozenset()
    """The indices of tasks whose groups are complete, with any status. All others are still to be
    played, those in flight at the crash first: the task cursor skips only these indices."""
    drawn: Mapping[int, str] = field(default_factory=dict[int, str])
    """The tasks that a curriculum chose: their keys, by index. It skipped the tasks between."""
    results: Sequence[Result] = ()
    """The results of the complete groups of the tasks in `drawn`."""
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    history: Sequence[Mapping[str, float]] = ()
    """The metrics of the first `step` batches."""
    parameters: Mapping[int, str] = field(default_factory=dict[int, str])
    """The hashes of the weights after each later batch, by step; without those of format 0, which
    were computed differently."""


NOTHING = Recovered()
"""The state of a new run."""


def recover(log: Path, *, step: int, checkpoint: Path | None, incarnation: int) -> Recovered:
    """Return the state in the log, after `EpisodeLog.begin`, for a checkpoint of `step` batches,
    all of which must be in the log (see `first_absent`).

    Raises:
        ConfigError: the log is damaged.
    """
    with contextlib.closing(open_to_read(log)) as db:
        try:
            steps = db.execute(_LAST, ()).fetchall()
            metrics = {number: parse_json(text) for number, text, *_ in steps}
            indices = db.execute("SELECT task_index FROM groups WHERE task_index >= 0")
            return Recovered(
                step=step,
                checkpoint=checkpoint,
                incarnation=incarnation,
                leased=_batches(db, step, sys.maxsize),
                waiting=[group for _, group in _groups(db, "g.status = 'waiting'")],
                begun=_begun(db),
                logged=frozenset(index for (index,) in indices),
                drawn=(drawn := dict(db.execute("SELECT task_index, key FROM draws"))),
                results=list(_results(db, drawn)),
                dropped=Counter(dict(db.execute(_DROPPED, (EVALUATED,)))),
                history=[_numbers(metrics[number]) for number in range(step)],
                parameters={
                    number: found for number, _, found, of in steps if number >= step and of
                },
            )
        except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{log} cannot be resumed from: {error}") from error


def first_absent(log: Path) -> int:
    """Return the first batch without a published version in the log."""
    with contextlib.closing(open_to_read(log)) as db, explained(log):
        known = {step for (step,) in db.execute("SELECT DISTINCT step FROM steps")}
    return next(step for step in count() if step not in known)


_LAST = """
    SELECT s.step, metrics, parameters, i.format
    FROM steps s JOIN incarnations i USING (incarnation) WHERE incarnation =
        (SELECT max(incarnation) FROM steps WHERE step = s.step) ORDER BY s.step"""
_DROPPED = """
    SELECT cause, count(*) FROM groups WHERE status = 'dropped' AND cause != ? GROUP BY cause"""
_GROUPS = """
    SELECT g.step, g.group_id, g.task_id, t.weight, g.task_index, g.members, t.data
    FROM groups g JOIN tasks t USING (task_id) WHERE {} ORDER BY g.rowid"""
_BEGUN = """
    SELECT data FROM trajectories LEFT JOIN groups g USING (group_id) WHERE g.group_id IS NULL"""


def batches(log: Path, *, first: int, last: int) -> dict[int, list[Group]]:
    """Return those of the batches `first` to `last` that exist, as they were sent to the trainer.

    Raises:
        ConfigError: the log is damaged.
    """
    with contextlib.closing(open_to_read(log)) as db:
        try:
            return _batches(db, first, last)
        except (sqlite3.Error, ValueError, KeyError) as error:
            raise ConfigError(f"{log} cannot be read: {error!r}") from error


def _batches(db: sqlite3.Connection, first: int, last: int) -> dict[int, list[Group]]:
    found: dict[int, list[Group]] = {}
    for at, group in _groups(db, "g.step BETWEEN ? AND ?", first, last):
        found.setdefault(at, []).append(group)
    return {at: _in_order(at, batch) for at, batch in found.items()}


def _groups(db: sqlite3.Connection, where: str, *values: int) -> list[tuple[int, Group]]:
    """Return groups, each with its step (if any)."""
    found: list[tuple[int, Group]] = []
    rows = db.execute(_GROUPS.format(where), values).fetchall()
    for at, group_id, task_id, weight, index, members, data in rows:
        rows = db.execute("SELECT data FROM trajectories WHERE group_id = ?", (group_id,))
        by_id = {t.episode_id: t for t in (Trajectory.unpack(data) for (data,) in rows)}
        episodes = [by_id[name] for name in parse_json(members)]
        found.append((at, Group(group_id, task_id, episodes, weight, index, parse_json(data))))
    return found


def _results(db: sqlite3.Connection, drawn: Mapping[int, str]) -> Iterator[Result]:
    for index, key in drawn.items():
        for _, group in _groups(db, "g.task_index = ?", index):
            if result := Result.of(group, key):
                yield result


def _in_order(step: int, batch: Sequence[Group]) -> list[Group]:
    """Return the batch in the order of `Buffer.take`."""
    return sorted(batch, key=lambda group: (-group.staleness(step), group.index))


def _begun(db: sqlite3.Connection) -> dict[str, dict[str, Trajectory]]:
    found: dict[str, dict[str, Trajectory]] = {}
    for (data,) in db.execute(_BEGUN):
        episode = Trajectory.unpack(data)
        found.setdefault(episode.group_id, {})[episode.episode_id] = episode
    return found


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}
