"""What a run that ended has left: its log and its newest checkpoint, read together.

The checkpoint says which batches its weights have. Batches after those were leased, in the log, to
the same groups they are trained on again. So whatever was handed to the trainer is in the weights
that survive exactly once, and whatever was not waits, or is played again:

    groups of leased steps ≥ the checkpoint's   trained again, at the same steps
    groups that wait                            wait
    groups of which some episodes are there     those stay, the others are played again
    groups that are not there                   played again (see `Recovered.logged`)

Episodes are played again with the seeds they had. A crash finds long episodes in flight more often
than short ones; were their tokens drawn anew, the ones that are trained would be too short.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.group import Group
from agentgym_rl.core.trajectory import Trajectory

from .episode_log import EVALUATED


@dataclass(frozen=True, slots=True)
class Recovered:
    """What there is of a run that goes on."""

    step: int = 0
    """Batches that its weights have, and their policy version."""
    checkpoint: Path | None = None
    """None: its weights are those it began with."""
    incarnation: int = 0
    leased: Mapping[int, list[Group]] = field(default_factory=dict[int, list[Group]])
    """Batches from `step` on, each in the order in which it was handed out."""
    waiting: Sequence[Group] = ()
    begun: Mapping[str, Mapping[str, Trajectory]] = field(
        default_factory=dict[str, Mapping[str, Trajectory]]
    )
    """By group and episode id: episodes of groups that are not complete."""
    logged: frozenset[int] = frozenset()
    """Indices of tasks whose groups are complete, whatever became of them. All others are still to
    be played, those in flight at the crash first: the cursor of the data is what is not here."""
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    history: Sequence[Mapping[str, float]] = ()
    """Metrics of the first `step` batches."""
    parameters: Mapping[int, str] = field(default_factory=dict[int, str])
    """Hashes of the weights that later batches had made."""


NOTHING = Recovered()
"""Of a run that only begins."""


def recover(log: Path, *, step: int, checkpoint: Path | None, incarnation: int) -> Recovered:
    """What the log (`EpisodeLog.begin` has been called) says, besides a checkpoint of `step`
    batches, all of which the log has (`first_absent`).

    Raises:
        ConfigError: the log is damaged.
    """
    with contextlib.closing(sqlite3.connect(log)) as db:
        try:
            steps = db.execute(_LAST, ()).fetchall()
            metrics = {number: json.loads(text) for number, text, _ in steps}
            indices = db.execute("SELECT task_index FROM groups WHERE task_index >= 0")
            return Recovered(
                step=step,
                checkpoint=checkpoint,
                incarnation=incarnation,
                leased=_batches(db, step, sys.maxsize),
                waiting=[group for _, group in _groups(db, "g.status = 'waiting'")],
                begun=_begun(db),
                logged=frozenset(index for (index,) in indices),
                dropped=Counter(dict(db.execute(_DROPPED, (EVALUATED,)))),
                history=[_numbers(metrics[number]) for number in range(step)],
                parameters={number: found for number, _, found in steps if number >= step},
            )
        except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{log} cannot be resumed from: {error}") from error


def first_absent(log: Path) -> int:
    """The first batch that the log does not say has become a version."""
    with contextlib.closing(sqlite3.connect(log)) as db:
        known = {step for (step,) in db.execute("SELECT DISTINCT step FROM steps")}
    return next(step for step in count() if step not in known)


_LAST = """
    SELECT step, metrics, parameters FROM steps s WHERE incarnation =
        (SELECT max(incarnation) FROM steps WHERE step = s.step) ORDER BY step"""
_DROPPED = """
    SELECT cause, count(*) FROM groups WHERE status = 'dropped' AND cause != ? GROUP BY cause"""
_GROUPS = """
    SELECT g.step, g.group_id, g.task_id, t.weight, g.task_index, g.members
    FROM groups g JOIN tasks t USING (task_id) WHERE {} ORDER BY g.rowid"""
_BEGUN = """
    SELECT data FROM trajectories LEFT JOIN groups g USING (group_id) WHERE g.group_id IS NULL"""


def batches(log: Path, *, first: int, last: int) -> dict[int, list[Group]]:
    """Batches `first` to `last` as they were handed out, those that there are.

    Raises:
        ConfigError: the log is damaged.
    """
    with contextlib.closing(sqlite3.connect(f"{log.absolute().as_uri()}?mode=ro", uri=True)) as db:
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
    """Groups, each with its step (if any)."""
    found: list[tuple[int, Group]] = []
    rows = db.execute(_GROUPS.format(where), values).fetchall()
    for at, group_id, task_id, weight, index, members in rows:
        rows = db.execute("SELECT data FROM trajectories WHERE group_id = ?", (group_id,))
        by_id = {t.episode_id: t for t in (Trajectory.unpack(data) for (data,) in rows)}
        episodes = [by_id[name] for name in json.loads(members)]
        found.append((at, Group(group_id, task_id, episodes, weight, index)))
    return found


def _in_order(step: int, batch: Sequence[Group]) -> list[Group]:
    """As `Buffer.take` had it."""
    return sorted(batch, key=lambda group: (-group.staleness(step), group.index))


def _begun(db: sqlite3.Connection) -> dict[str, dict[str, Trajectory]]:
    found: dict[str, dict[str, Trajectory]] = {}
    for (data,) in db.execute(_BEGUN):
        episode = Trajectory.unpack(data)
        found.setdefault(episode.group_id, {})[episode.episode_id] = episode
    return found


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}
