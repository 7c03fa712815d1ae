"""A read-only view of the durable log of a run (see episode_log)."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from agentgym_rl.config import check_format
from agentgym_rl.core import ConfigError, Task, Trajectory, forks_json, parse_json

_T = TypeVar("_T")


class Facts(NamedTuple):
    """The properties of an episode that the log has as columns, in addition to the episode's
    record."""

    row: int
    """The position in the order in which episodes were recorded."""
    episode_id: str
    group_id: str
    outcome: str
    reward: float
    num_turns: int
    num_tokens: int
    env_id: str
    forks: str
    """The causes of forks with their counts, as JSON."""


class GroupFacts(NamedTuple):
    """The properties of a group that the log has as columns."""

    group_id: str
    task_id: str
    status: str
    cause: str
    step: int | None


class Reward(NamedTuple):
    """The reward of an episode: as the log's column has it, as the record has it, and the group
    reward in it."""

    listed: float
    recorded: float
    of_group: float | None


class _Head(msgspec.Struct):
    """The fields of a record that are needed here; others are ignored."""

    reward: float
    env_id: str = ""
    metrics: dict[str, float] = {}
    group_reward: float | None = None


class _Versions(msgspec.Struct):
    """The policy versions of a packed row, as int32: of its tokens, or of its runs of tokens."""

    policy_versions: bytes = b""


class Glance(msgspec.Struct):
    """The fields of a record for tables and searches; its rows of tokens are not unpacked."""

    messages: list[dict[str, Any]] = []
    verdict: str = ""
    error: str = ""
    reward: float = 0.0
    reward_parts: dict[str, float] = {}
    seat: str = ""
    seats: list[Glance] = []
    rows: list[_Versions] = []

    @property
    def versions(self) -> list[int]:
        """Return the distinct policy versions that sampled tokens, ascending."""
        found = (memoryview(row.policy_versions).cast("i").tolist() for row in self.rows)
        return sorted({version for of_row in found for version in of_row if version >= 0})


@contextmanager
def explained(path: Path) -> Generator[None]:
    """Turn an error of SQLite in this context into an error about the log in `path`.

    Raises:
        ConfigError: the file is not a log, lacks a table, or is damaged.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise ConfigError(
            f"{path} is no readable episode log: {error}; put it back from a copy"
        ) from error


def open_to_read(path: Path) -> sqlite3.Connection:
    """Return a read-only connection to a log, of a live run or not. Without a -wal file, no run has
    the file open; then it is opened as `immutable`, which creates no files, and works in folders
    without write permission.

    Raises:
        ConfigError: there is no such file, it is not a log, or it is the log of a later version.
    """
    if not path.is_file():
        raise ConfigError(f"no episode log {path}: the run has not begun, or it was removed")
    options = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    with explained(path):
        db = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)
        try:
            check_log_format(db, path)
        except BaseException:
            db.close()
            raise
    return db


def check_log_format(db: sqlite3.Connection, path: Path) -> None:
    """Refuse the log of a later version of the package.

    Raises:
        ConfigError: see `config.check_format`.
    """
    ((found,),) = db.execute("PRAGMA user_version")
    check_format(found, path)


class EpisodeReader:
    """A read-only reader of `episodes.db` of a run, live or not. All methods may raise ConfigError:
    the file is not an episode log, or this version of the package cannot read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_to_read(path)

    def episode_ids(self, *, untrained: bool = False) -> list[str]:
        """Return the episodes of the groups that were leased to the trainer (`untrained`: of all
        groups)."""
        query = "SELECT t.episode_id FROM trajectories t JOIN groups g USING (group_id)"
        trained = "" if untrained else " WHERE g.status IN ('leased', 'consumed')"
        with self._explained():
            return [name for (name,) in self._db.execute(f"{query}{trained} ORDER BY t.rowid")]

    def members(self) -> list[list[str]]:
        """Return the episodes of each complete group, trained or not."""
        query = (
            "SELECT t.group_id, t.episode_id FROM groups g JOIN trajectories t USING (group_id) "
            "ORDER BY g.rowid, t.rowid"
        )
        found: dict[str, list[str]] = {}
        with self._explained():
            for group, name in self._db.execute(query):
                found.setdefault(group, []).append(name)
        return [*found.values()]

    def trained_between(self, first: int, last: int) -> list[str]:
        """Return the episodes of the batches of steps `first` to `last`, in recorded order."""
        query = (
            "SELECT t.episode_id FROM groups g JOIN trajectories t USING (group_id) "
            "WHERE g.step BETWEEN ? AND ? ORDER BY t.rowid"
        )
        with self._explained():
            return [name for (name,) in self._db.execute(query, (first, last))]

    def trajectory(self, episode_id: str) -> Trajectory:
        """Return the record of an episode, which must exist."""
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

    @property
    def num_recorded(self) -> int:
        """Return the number of recorded episodes, which is also the row of the newest."""
        with self._explained():
            return self._db.execute("SELECT max(rowid) FROM trajectories").fetchone()[0] or 0

    def facts(
        self,
        *,
        above: int = -1,
        below: int | None = None,
        episode_id: str = "",
        group_id: str = "",
        limit: int,
    ) -> list[Facts]:
        """Return the newest `limit` episodes with above < row < below, newest first.

        With `episode_id` or `group_id`, return only matching episodes. Logs of earlier versions do
        not have all properties as columns; then the records are read.
        """
        has_columns = "forks" in self._columns("trajectories")
        known = "env_id, forks, CASE WHEN forks IS NULL THEN data END"
        query = (
            "SELECT rowid, episode_id, group_id, outcome, reward, num_turns, num_tokens, "
            f"{known if has_columns else 'NULL, NULL, data'} FROM trajectories "
            "WHERE rowid > ? AND rowid < ?"
        )
        values: list[Any] = [above, 2**62 if below is None else below]
        for name, value in (("episode_id", episode_id), ("group_id", group_id)):
            if value:
                query += f" AND {name} = ?"
                values.append(value)
        with self._explained():
            found = self._db.execute(f"{query} ORDER BY rowid DESC LIMIT ?", [*values, limit])
            return [
                Facts._make([*row, env_id or "", forks])
                if data is None
                else Facts._make([*row, *self._of_record(data)])
                for *row, env_id, forks, data in found
            ]

    def glances(self, rows: Sequence[int]) -> Iterator[tuple[int, Glance, str | None]]:
        """Return the row, a part of the record, and the task's data as JSON (None: not logged yet)
        of the episodes in these rows."""
        query = (
            "SELECT t.rowid, t.data, k.data FROM trajectories t LEFT JOIN groups g USING (group_id)"
            " LEFT JOIN tasks k USING (task_id) WHERE t.rowid = ?"
        )
        for row in rows:
            with self._explained():
                found = self._db.execute(query, (row,)).fetchall()
            for number, data, task in found:
                yield number, self._decoded(data, Glance), task

    def _of_record(self, data: bytes) -> tuple[str, str]:
        head = self._decoded(data, _Head)
        return head.env_id, forks_json(head.metrics)

    def _decoded(self, data: bytes, kind: type[_T]) -> _T:
        try:
            return msgspec.msgpack.decode(data, type=kind)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"a record in {self._path} cannot be read: {error}") from error

    def rewards(self, group_id: str) -> dict[str, Reward]:
        """Return the rewards of a group's recorded episodes, by their ids."""
        query = "SELECT episode_id, reward, data FROM trajectories WHERE group_id = ?"
        with self._explained():
            rows = self._db.execute(query, (group_id,)).fetchall()
        heads = [(name, listed, self._decoded(data, _Head)) for name, listed, data in rows]
        return {name: Reward(listed, of.reward, of.group_reward) for name, listed, of in heads}

    def step_metrics(self) -> dict[int, dict[str, float | None]]:
        """Return the metrics of each trained batch, by step."""
        query = "SELECT step, metrics FROM steps ORDER BY incarnation, step"
        with self._explained():
            return {step: parse_json(found) for step, found in self._db.execute(query)}

    def groups(self) -> list[GroupFacts]:
        """Return all complete groups."""
        query = "SELECT group_id, task_id, status, cause, step FROM groups"
        with self._explained():
            return [GroupFacts(*row) for row in self._db.execute(query)]

    def _columns(self, table: str) -> set[str]:
        with self._explained():
            return {name for _, name, *_ in self._db.execute(f"PRAGMA table_info({table})")}

    def batches(self) -> dict[int, dict[str, list[str]]]:
        """Return the trained groups by step, in the order of the batch, with the ids of their
        episodes."""
        query = "SELECT step, group_ids FROM steps ORDER BY incarnation, step"
        with self._explained():
            steps = {step: parse_json(groups) for step, groups in self._db.execute(query)}
            found = self._db.execute("SELECT group_id, members FROM groups")
            members = {group: parse_json(names) for group, names in found}
        return {
            step: {group: members[group] for group in groups if members.get(group)}
            for step, groups in sorted(steps.items())
        }

    def task(self, task_id: str) -> Task:
        """Return a played task; its weight is 1 in logs of versions without weights."""
        with self._explained():
            rows = self._db.execute("SELECT * FROM tasks WHERE task_id = ?", (task_id,))
            names, found = [column for column, *_ in rows.description], rows.fetchone()
        if found is None:
            raise ConfigError(f"task {task_id} is not in {self._path}: the log is incomplete")
        row: dict[str, Any] = {"weight": 1.0} | dict(zip(names, found, strict=True))
        try:
            data = parse_json(row["data"])
            return Task(task_id, row["seed"], data, row["split"], row["weight"])
        except ValueError as error:
            raise ConfigError(f"task {task_id} in {self._path} cannot be read: {error}") from error

    @property
    def steps_published(self) -> int:
        """Return the number of training batches whose policy version was published."""
        with self._explained():
            return self._db.execute("SELECT count(*) FROM versions").fetchone()[0]

    def close(self) -> None:
        """Close the file; idempotent."""
        self._db.close()

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self._path)
