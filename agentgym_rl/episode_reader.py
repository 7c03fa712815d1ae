"""What the durable log of a run says, read-only (see episode_log)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .task import Task
from .trajectory import Trajectory


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

    def batches(self) -> dict[int, dict[str, list[str]]]:
        """What was trained, by step: groups in the order of the batch, with their episodes'
        ids."""
        query = "SELECT step, group_ids FROM steps ORDER BY incarnation, step"
        with self._explained():
            steps = {step: json.loads(groups) for step, groups in self._db.execute(query)}
            found = self._db.execute("SELECT group_id, members FROM groups")
            members = {group: json.loads(names) for group, names in found}
        return {
            step: {group: members[group] for group in groups if members.get(group)}
            for step, groups in sorted(steps.items())
        }

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
