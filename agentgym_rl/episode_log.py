"""The durable log of a run: SQLite in WAL mode; a trajectory is here before it counts.

A transaction survives the death of the process at any moment (`synchronous=NORMAL`: a power
failure may cost the last ones, never the file). `arl train` is the only writer; readers open it
read-only and hold no transaction, so a live run does not notice them.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .buffer import Group
from .errors import ConfigError
from .task import Task
from .trajectory import Trajectory

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    task_id TEXT PRIMARY KEY, task_index INTEGER NOT NULL, seed INTEGER NOT NULL,
    split TEXT NOT NULL, data TEXT NOT NULL, weight REAL NOT NULL DEFAULT 1);
CREATE TABLE IF NOT EXISTS groups (
    group_id TEXT PRIMARY KEY, task_id TEXT NOT NULL REFERENCES tasks,
    status TEXT NOT NULL CHECK (status IN ('waiting', 'leased', 'consumed', 'dropped')),
    cause TEXT NOT NULL DEFAULT '', oldest_version INTEGER, finished_s REAL NOT NULL,
    step INTEGER);
CREATE TABLE IF NOT EXISTS trajectories (
    episode_id TEXT PRIMARY KEY, group_id TEXT NOT NULL REFERENCES groups,
    outcome TEXT NOT NULL, reward REAL NOT NULL, num_turns INTEGER NOT NULL,
    num_tokens INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS versions (
    version INTEGER PRIMARY KEY, step INTEGER NOT NULL, published_s REAL NOT NULL,
    checkpoint TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS groups_by_status ON groups (status, step);
CREATE INDEX IF NOT EXISTS trajectories_by_group ON trajectories (group_id);
"""


EVALUATED = "evaluated"
"""The cause of groups that were played for an evaluation."""

Statement = tuple[str, tuple[object, ...]]


class EpisodeLog:
    """`episodes.db` of a run. Methods run in a worker thread, one at a time."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._add_weights()
        self._turn = threading.Lock()

    def _add_weights(self) -> None:
        """Tasks of files that were begun before tasks had weights have 1."""
        columns = [name for _, name, *_ in self._db.execute("PRAGMA table_info(tasks)")]
        if "weight" not in columns:
            self._db.execute("ALTER TABLE tasks ADD COLUMN weight REAL NOT NULL DEFAULT 1")

    async def add_group(
        self, task: Task, task_index: int, group: Group, *, dropped: str = ""
    ) -> None:
        """Record a finished group: waiting to be trained, or `dropped` for that cause."""
        await self._transact(
            [
                _insert_task(task, task_index),
                (
                    "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, NULL)",
                    (
                        group.group_id,
                        task.id,
                        "dropped" if dropped else "waiting",
                        dropped,
                        group.oldest_version,
                        time.time(),
                    ),
                ),
                *(
                    ("INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?)", _columns(member))
                    for member in group.members
                ),
            ]
        )

    async def add_evaluated(self, task: Task, task_index: int, episode: Trajectory) -> None:
        """Record an episode of an evaluation. Its group, the episodes of its task, is one that
        was dropped for the cause `evaluated`: nothing trains on it."""
        group = (episode.group_id, task.id, "dropped", EVALUATED, time.time())
        await self._transact(
            [
                _insert_task(task, task_index),
                ("INSERT OR IGNORE INTO groups VALUES (?, ?, ?, ?, NULL, ?, NULL)", group),
                ("INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?)", _columns(episode)),
            ]
        )

    async def drop(self, groups: Sequence[Group], cause: str) -> None:
        """Groups that were waiting will not be trained."""
        await self._transact(
            [
                (
                    "UPDATE groups SET status = 'dropped', cause = ? WHERE group_id = ?",
                    (cause, group.group_id),
                )
                for group in groups
            ]
        )

    async def lease(self, groups: Sequence[Group], step: int) -> None:
        """Groups were handed to the trainer for `step`."""
        await self._transact(
            [
                (
                    "UPDATE groups SET status = 'leased', step = ? WHERE group_id = ?",
                    (step, group.group_id),
                )
                for group in groups
            ]
        )

    async def publish(self, version: int, step: int, checkpoint: str) -> None:
        """`step` made `version`; a checkpoint consumes every group leased up to its step."""
        actions: list[Statement] = [
            (
                "INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?)",
                (version, step, time.time(), checkpoint),
            )
        ]
        if checkpoint:
            actions.append(
                (
                    "UPDATE groups SET status = 'consumed' WHERE status = 'leased' AND step <= ?",
                    (step,),
                )
            )
        await self._transact(actions)

    def trajectories(self, *, step: int | None = None) -> list[Trajectory]:
        """All trajectories, or those trained at `step`, in the order they finished."""
        query = "SELECT t.data FROM trajectories t JOIN groups g USING (group_id)"
        where, values = ("", ()) if step is None else (" WHERE g.step = ?", (step,))
        rows = self._db.execute(f"{query}{where} ORDER BY t.rowid", values)
        return [Trajectory.unpack(data) for (data,) in rows]

    def close(self) -> None:
        """Close the file, after the transaction under way; idempotent."""
        with self._turn:
            self._db.close()

    async def _transact(self, actions: Sequence[Statement]) -> None:
        await asyncio.to_thread(self._run, actions)

    def _run(self, actions: Sequence[Statement]) -> None:
        """One transaction; the thread ends it even if whoever awaits it was cancelled."""
        with self._turn:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in actions:
                    self._db.execute(statement, values)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


class EpisodeReader:
    """`episodes.db` of a run, living or not, read-only. All methods may raise ConfigError:
    the file is no episode log, or one that this version of the package cannot read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise ConfigError(f"no episode log {path}: the run has not begun, or it was removed")
        # Without a -wal beside it no run has the file open; `immutable` then leaves no files
        # behind, and reads from folders one may not write to.
        options = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        with self._explained():
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)

    def episode_ids(self, *, untrained: bool = False) -> list[str]:
        """Episodes of the groups that were handed to the trainer (`untrained`: of all groups)."""
        query = "SELECT t.episode_id FROM trajectories t JOIN groups g USING (group_id)"
        trained = "" if untrained else " WHERE g.status IN ('leased', 'consumed')"
        with self._explained():
            return [name for (name,) in self._db.execute(f"{query}{trained} ORDER BY t.rowid")]

    def trajectory(self, episode_id: str) -> Trajectory:
        """The record of an episode that is there."""
        query = "SELECT data FROM trajectories WHERE episode_id = ?"
        with self._explained():
            ((data,),) = self._db.execute(query, (episode_id,))
        try:
            return Trajectory.unpack(data)
        except ValueError as error:
            raise ConfigError(
                f"episode {episode_id} in {self._path} cannot be read ({error}); was the run made "
                "by another version of this package?"
            ) from error

    def task(self, task_id: str) -> Task:
        """A task that was played; of files from before tasks had weights, its weight is 1."""
        with self._explained():
            rows = self._db.execute("SELECT * FROM tasks WHERE task_id = ?", (task_id,))
            names, found = [column for column, *_ in rows.description], rows.fetchone()
        if found is None:
            raise ConfigError(f"task {task_id} is not in {self._path}: the log is not whole")
        row: dict[str, Any] = {"weight": 1.0} | dict(zip(names, found, strict=True))
        try:
            data = json.loads(row["data"])
            return Task(task_id, row["seed"], data, row["split"], row["weight"])
        except ValueError as error:
            raise ConfigError(f"task {task_id} in {self._path} cannot be read: {error}") from error

    @property
    def steps_published(self) -> int:
        """Training batches that have become a policy version."""
        with self._explained():
            return self._db.execute("SELECT count(*) FROM versions").fetchone()[0]

    def close(self) -> None:
        """Close the file; idempotent."""
        self._db.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ConfigError(f"{self._path} is no readable episode log: {error}") from error


def _insert_task(task: Task, index: int) -> Statement:
    values = (task.id, index, task.seed, task.split, json.dumps(dict(task.data)), task.weight)
    return "INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, ?, ?)", values


def _columns(member: Trajectory) -> tuple[object, ...]:
    return (
        member.episode_id,
        member.group_id,
        member.outcome.value,
        member.reward,
        member.num_turns,
        member.num_tokens,
        member.pack(),
    )
