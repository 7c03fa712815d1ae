"""The durable log of a run, an SQLite database in WAL mode; a trajectory counts only once it is
logged.

A transaction survives the death of the process at any moment. Under load, one transaction serves
many episodes (`GroupCommit`); each episode counts once it is committed. The episodes of a batch are
on disk before the trainer gets the batch. A power failure may lose other transactions, but never
the file (`synchronous=NORMAL`): then episodes that are in no batch are played again. `arl train` is
the only writer; readers (episode_reader) hold no transaction, so they do not block a live run.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from agentgym_rl.config import FORMAT, LaterVersion
from agentgym_rl.core import (
    ConfigError,
    Group,
    StepReport,
    StorageError,
    Task,
    Trajectory,
    forks_json,
    parse_json,
)

from .batched_commits import GroupCommit, Statement, merged
from .episode_reader import check_log_format
from .run_folder import build

log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    task_id TEXT PRIMARY KEY, task_index INTEGER NOT NULL, seed INTEGER NOT NULL,
    split TEXT NOT NULL, data TEXT NOT NULL, weight REAL NOT NULL DEFAULT 1);
CREATE TABLE IF NOT EXISTS groups (
    group_id TEXT PRIMARY KEY, task_id TEXT NOT NULL REFERENCES tasks,
    status TEXT NOT NULL CHECK (status IN ('waiting', 'leased', 'consumed', 'dropped')),
    cause TEXT NOT NULL DEFAULT '', oldest_version INTEGER, finished_s REAL NOT NULL,
    step INTEGER, task_index INTEGER NOT NULL DEFAULT -1, members TEXT NOT NULL DEFAULT '[]');
CREATE TABLE IF NOT EXISTS trajectories (
    episode_id TEXT PRIMARY KEY, group_id TEXT NOT NULL REFERENCES groups,
    outcome TEXT NOT NULL, reward REAL NOT NULL, num_turns INTEGER NOT NULL,
    num_tokens INTEGER NOT NULL, env_id TEXT, forks TEXT, data BLOB NOT NULL, crc INTEGER);
CREATE TABLE IF NOT EXISTS versions (
    version INTEGER PRIMARY KEY, step INTEGER NOT NULL, published_s REAL NOT NULL,
    checkpoint TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS incarnations (
    incarnation INTEGER PRIMARY KEY, step INTEGER NOT NULL, checkpoint TEXT NOT NULL,
    num_ranks INTEGER NOT NULL, started_s REAL NOT NULL, ready_s REAL,
    format INTEGER NOT NULL DEFAULT 0, build TEXT NOT NULL DEFAULT '',
    num_steps INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS steps (
    incarnation INTEGER NOT NULL, step INTEGER NOT NULL, group_ids TEXT NOT NULL,
    parameters TEXT NOT NULL, metrics TEXT NOT NULL, finished_s REAL NOT NULL,
    PRIMARY KEY (incarnation, step));
CREATE TABLE IF NOT EXISTS draws (task_index INTEGER PRIMARY KEY, key TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS groups_by_status ON groups (status, step);
CREATE INDEX IF NOT EXISTS trajectories_by_group ON trajectories (group_id);
"""
_TABLES = frozenset(re.findall(r"TABLE IF NOT EXISTS (\w+)", _SCHEMA))


_ADDED = (
    ("tasks", "weight", "REAL NOT NULL DEFAULT 1"),
    ("groups", "task_index", "INTEGER NOT NULL DEFAULT -1"),
    ("groups", "members", "TEXT NOT NULL DEFAULT '[]'"),
    ("trajectories", "env_id", "TEXT"),
    ("trajectories", "forks", "TEXT"),
    ("trajectories", "crc", "INTEGER"),
    ("incarnations", "format", "INTEGER NOT NULL DEFAULT 0"),
    ("incarnations", "build", "TEXT NOT NULL DEFAULT ''"),
    ("incarnations", "num_steps", "INTEGER NOT NULL DEFAULT 0"),
)
"""The columns that later versions added: table, name, type. NULL: the value is only in the
record."""

_CONSUME = "UPDATE groups SET status = 'consumed' WHERE status = 'leased' AND step < ?"

EVALUATED = "evaluated"
"""The cause of groups that were played for an evaluation."""

_PAGE_BYTES = 16384
"""The page size. An episode has about ten thousand bytes: it needs four of SQLite's default pages
of 4,096 bytes, the last mostly empty. Larger pages than 16,384 bytes cost more when few episodes
arrive at once, since a page is always written completely."""
_CHECKPOINT_PAGES = 1024
"""The number of pages in the write-ahead log after which SQLite moves them to the file and waits
for the disk."""


def check_log(path: Path, *, from_step: int | None = None) -> None:
    """Check that a log without a writer is intact, in half a second per gigabyte.

    SQLite checks the structure of the file and its indices, but not the bytes inside an episode.
    Those are compared with their checksums: of all episodes, or with `from_step` only of episodes
    that training may still need (waiting, of batches from that step on, or in no group).

    Raises:
        ConfigError: the file is damaged, or is not a log.
    """
    try:
        with closing(sqlite3.connect(path)) as db:
            check_log_format(db, path)
            ((found,),) = db.execute("PRAGMA integrity_check(1)")
            if found != "ok":
                raise ValueError(" ".join(found.split()))  # SQLite writes several lines
            (number,) = db.execute("PRAGMA user_version").fetchone()
            there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            if number and (lost := _TABLES - there):  # earlier versions had fewer
                raise ValueError(f"it lacks the table {', '.join(sorted(lost))}")
            columns = [name for _, name, *_ in db.execute("PRAGMA table_info(trajectories)")]
            if "crc" not in columns:  # an empty file, or one of an earlier version
                return
            needed = "" if from_step is None else _NEEDED.format(int(from_step))
            for name, data, crc in db.execute(_CHECKSUMS + needed):
                if crc is not None and zlib.crc32(data) != crc:
                    raise ValueError(f"the record of episode {name} is not what was written")
    except LaterVersion:
        raise
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise ConfigError(f"{path.name} is damaged ({error})") from error


_CHECKSUMS = """
    SELECT episode_id, data, t.crc FROM trajectories t LEFT JOIN groups g USING (group_id)"""
_NEEDED = " WHERE g.group_id IS NULL OR g.status = 'waiting' OR g.step >= {}"


class EpisodeLog:
    """The file `episodes.db` of a run. Methods run in a worker thread, one at a time; methods that
    write raise StorageError if the disk is full or broken."""

    def __init__(self, path: Path) -> None:
        """Open the file; create it if there is none.

        Raises:
            StorageError: it can be neither opened nor created.
            LaterVersion: a later version of the package created it.
        """
        self.path = path
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise StorageError(
                f"{path} cannot be opened or made: {error}. Its place has to be a file, or free, "
                "in a folder that can be written, on a disk with room"
            ) from error
        self._is_broken = False
        self._incarnation = 0
        self._logged_members: set[str] = set()
        """The ids of logged episodes whose groups are not complete."""
        self._num_steps = 0
        self._turn = threading.Lock()
        self._commits = GroupCommit(lambda actions, durably: self._run(actions, durably=durably))

    def _prepare(self) -> None:
        check_log_format(self._db, self.path)
        self._db.execute(f"PRAGMA page_size={_PAGE_BYTES}")  # only affects a new file
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        self._db.executescript(_SCHEMA)
        self._add_columns()
        self._db.execute(f"PRAGMA user_version={FORMAT}")

    def _add_columns(self) -> None:
        """Add the columns that files of earlier versions lack, with their old default values."""
        for table, name, kind in _ADDED:
            columns = [column for _, column, *_ in self._db.execute(f"PRAGMA table_info({table})")]
            if name not in columns:
                self._db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")

    def begin(self, *, step: int, checkpoint: str, num_ranks: int, num_steps: int = 0) -> int:
        """Begin or resume the run, which is to have `num_steps` batches (0: unknown), from
        `checkpoint`, which covers its first `step` batches.

        Returns the incarnation, 0 for a new run. Call it once, before anything else. Batches of
        later steps are leased again; their versions are deleted, since their weights are lost.
        """
        ((last,),) = self._db.execute("SELECT max(incarnation) FROM incarnations")
        self._incarnation = 0 if last is None else last + 1
        known = self._db.execute(
            "SELECT episode_id FROM trajectories LEFT JOIN groups g USING (group_id) "
            "WHERE g.group_id IS NULL"
        )
        self._logged_members = {name for (name,) in known}
        self._num_steps = num_steps
        self._run(
            [
                self._begun(step, checkpoint, num_ranks),
                (_CONSUME, (step,)),
                ("UPDATE groups SET status = 'leased' WHERE step >= ?", (step,)),
                ("DELETE FROM versions WHERE version > ?", (step,)),
            ],
            durably=True,
        )
        return self._incarnation

    async def restarted(self, *, step: int, checkpoint: str, num_ranks: int) -> int:
        """Record a restart of the trainer within a live run, from `checkpoint`, which covers the
        first `step` batches. Returns the incarnation.

        Versions that the trainer had published stay: engines serve them.
        """
        self._incarnation += 1
        begun = self._begun(step, checkpoint, num_ranks)
        await self._transact([begun, (_CONSUME, (step,))], durably=True)
        return self._incarnation

    def _begun(self, step: int, checkpoint: str, num_ranks: int) -> Statement:
        now = time.time(), FORMAT, build(), self._num_steps
        return _BEGIN, (self._incarnation, step, checkpoint, num_ranks, *now)

    async def ready(self) -> None:
        """Record that all parts of the run are ready and training begins."""
        statement = "UPDATE incarnations SET ready_s = ? WHERE incarnation = ?"
        await self._transact([(statement, (time.time(), self._incarnation))])

    async def add_drawn(self, task_index: int, key: str) -> None:
        """Record that a task is chosen, before its group begins; `key` is the key of its
        rewards."""
        await self._transact([("INSERT INTO draws VALUES (?, ?)", (task_index, key))])

    async def add_member(
        self, member: Trajectory, *, task: Task | None = None, task_index: int = -1
    ) -> None:
        """Record an episode of a group that is not complete yet; with its task, if only the program
        that plays the episode has the task (see `task_of`)."""
        if member.episode_id in self._logged_members:
            return await self._transact([])  # wait for its pending insert
        self._logged_members.add(member.episode_id)
        of_task = [] if task is None else [_insert_task(task, task_index)]
        await self._transact([*of_task, _insert_trajectory(member)])

    async def add_group(
        self, task: Task, task_index: int, group: Group, *, dropped: str = ""
    ) -> None:
        """Record a finished group: waiting to be trained, or dropped for the cause `dropped`.

        A member that has received a group reward since it was recorded is recorded again, with this
        reward.
        """
        names = [member.episode_id for member in group.members]
        await self._transact(
            [
                _insert_task(task, task_index),
                (
                    "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?)",
                    (
                        group.group_id,
                        task.id,
                        "dropped" if dropped else "waiting",
                        dropped,
                        group.oldest_version,
                        time.time(),
                        task_index,
                        json.dumps(names),
                    ),
                ),
                *(
                    _insert_trajectory(member)
                    for member in group.members
                    if member.episode_id not in self._logged_members
                ),
                *(
                    _update_trajectory(member)
                    for member in group.members
                    if member.episode_id in self._logged_members and member.group_reward is not None
                ),
            ]
        )
        self._logged_members.difference_update(names)

    async def add_evaluated(self, task: Task, task_index: int, episode: Trajectory) -> None:
        """Record an episode of an evaluation. Its group, the episodes of its task, is recorded as
        dropped for the cause `evaluated`: it is never trained. An episode that was played again
        takes the place of the first one."""
        group = (episode.group_id, task.id, EVALUATED, time.time())
        await self._transact(
            [
                _insert_task(task, task_index),
                (
                    "INSERT OR IGNORE INTO groups (group_id, task_id, status, cause, finished_s) "
                    "VALUES (?, ?, 'dropped', ?, ?)",
                    group,
                ),
                _insert_trajectory(episode, replaces=True),
            ]
        )

    async def drop(self, groups: Sequence[Group], cause: str) -> None:
        """Record that waiting groups will not be trained."""
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
        """Record the groups leased to the trainer for `step`; they are on disk when this
        returns."""
        await self._transact(
            [
                (
                    "UPDATE groups SET status = 'leased', step = ? WHERE group_id = ?",
                    (step, group.group_id),
                )
                for group in groups
            ],
            durably=True,
        )

    async def publish(self, report: StepReport, metrics: Mapping[str, float | None]) -> None:
        """Record the version that a step produced, with all `metrics` of the step; both are on disk
        when this returns."""
        now = time.time()
        step = (self._incarnation, report.step, json.dumps([*report.group_ids]))
        version = (report.version, report.step, now, "")
        await self._transact(
            [
                ("INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?)", version),
                (
                    "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)",
                    (*step, report.parameters, json.dumps(dict(metrics)), now),
                ),
            ],
            durably=True,
        )

    async def checkpointed(self, step: int, folder: str) -> None:
        """Record a checkpoint of the first `step` batches: their groups are consumed."""
        await self._transact(
            [
                ("UPDATE versions SET checkpoint = ? WHERE version = ?", (folder, step)),
                (_CONSUME, (step,)),
            ]
        )

    def task_of(self, task_id: str) -> Task | None:
        """Return the task that was recorded under this id, if any."""
        query = "SELECT seed, data, split, weight FROM tasks WHERE task_id = ?"
        found = self._db.execute(query, (task_id,)).fetchone()
        if found is None:
            return None
        seed, data, split, weight = found
        return Task(task_id, seed, parse_json(data), split, weight)

    @property
    def num_groups(self) -> int:
        """Return the number of complete groups, of any status."""
        return self._db.execute("SELECT count(*) FROM groups").fetchone()[0]

    def trajectories(self, *, step: int | None = None) -> list[Trajectory]:
        """Return all trajectories, or those trained at `step`, in the order in which they
        finished."""
        query = "SELECT t.data FROM trajectories t JOIN groups g USING (group_id)"
        where, values = ("", ()) if step is None else (" WHERE g.step = ?", (step,))
        rows = self._db.execute(f"{query}{where} ORDER BY t.rowid", values)
        return [Trajectory.unpack(data) for (data,) in rows]

    def close(self) -> None:
        """Close the file after the current transaction; idempotent."""
        with self._turn:
            self._db.close()

    async def _transact(self, actions: Sequence[Statement], *, durably: bool = False) -> None:
        await self._commits.do(actions, durably=durably)

    def _run(self, actions: Sequence[Statement], *, durably: bool) -> None:
        """Run one transaction; the thread ends it even if the awaiting task was cancelled.

        `durably`: this transaction and all earlier ones are on disk at return.
        """
        with self._turn:
            try:
                self._db.execute(f"PRAGMA synchronous={'FULL' if durably else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                for statement, values in merged(actions):
                    self._db.execute(statement, values)
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:  # a full disk has ended it already
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError) and _is_storage(error):
                    self._log_once(error)
                    raise StorageError.of(self.path, error) from error
                raise

    def _log_once(self, error: sqlite3.OperationalError) -> None:
        """Log the error at once, and only once: it takes a while until the processes of a cluster
        have ended."""
        if not self._is_broken:
            log.error("%s cannot be written: %s; the run ends", self.path, error)
        self._is_broken = True


def _is_storage(error: sqlite3.OperationalError) -> bool:
    """Return whether the disk caused the error; any other cause is a bug of this package."""
    return error.sqlite_errorname.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY"))


def _insert_task(task: Task, index: int) -> Statement:
    values = (task.id, index, task.seed, task.split, json.dumps(dict(task.data)), task.weight)
    return "INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, ?, ?)", values


def _insert_trajectory(member: Trajectory, *, replaces: bool = False) -> Statement:
    """Return the insert statement, and keep the rows packed: the trainer gets them in that form."""
    member.keep_packed()
    data = member.pack()
    values = (
        member.episode_id,
        member.group_id,
        member.outcome.value,
        member.reward,
        member.num_turns,
        member.num_tokens,
        member.env_id,
        forks_json(member.metrics),
        data,
        zlib.crc32(data),
    )
    return _INSERT.replace("INSERT", "INSERT OR REPLACE", 1) if replaces else _INSERT, values


def _update_trajectory(member: Trajectory) -> Statement:
    data = member.pack()
    values = (member.reward, data, zlib.crc32(data), member.episode_id)
    return "UPDATE trajectories SET reward = ?, data = ?, crc = ? WHERE episode_id = ?", values


# The columns are named, because logs of earlier versions have them in another order.
_BEGIN = (
    "INSERT INTO incarnations (incarnation, step, checkpoint, num_ranks, started_s, format, build, "
    "num_steps) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT = (
    "INSERT INTO trajectories (episode_id, group_id, outcome, reward, num_turns, num_tokens, "
    "env_id, forks, data, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
