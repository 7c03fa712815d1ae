"""An in-memory index for the table of episodes: 100,000 episodes take a few MB, their log GBs.

The log is read backwards from the newest episode, a few thousand at a time, so that the first rows
are there at once. Later, only new episodes and the states of the groups are read.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from agentgym_rl.core import parse_json
from agentgym_rl.storage import EpisodeReader
from agentgym_rl.storage.episode_reader import Facts

from .query import STATUS, Query, missing

FIRST = 1000
"""The number of episodes of the first portion."""
_FIRST_S = 0.25
"""The seconds of reading more such portions before the first answer: this completes most logs."""
PORTION = 5000
_FRESH_S = 0.5
"""The seconds after a read in which the log is not read again."""
_SCHEMA = """
CREATE TABLE episodes (row INTEGER PRIMARY KEY, id TEXT UNIQUE, grp TEXT, outcome TEXT,
    reward REAL, turns INTEGER, tokens INTEGER, env TEXT, forks TEXT);
CREATE TABLE groups (id TEXT PRIMARY KEY, task TEXT, status TEXT, cause TEXT, step INTEGER);
CREATE INDEX episodes_by_group ON episodes (grp);
"""
_FROM = " FROM episodes e LEFT JOIN groups g ON g.id = e.grp"
_COLUMNS = (
    "e.id, e.grp, coalesce(g.task, ''), e.env, e.outcome, e.reward, e.turns, e.tokens, e.forks, "
    f"{STATUS} AS status, coalesce(g.cause, ''), g.step AS step, e.row"
)
_KEYS = (
    *("id", "group", "task", "env", "outcome", "reward", "turns", "tokens", "forks"),
    *("status", "cause", "step", "row"),
)


class EpisodeIndex:
    """The index of one log. Methods may be called by several threads; they wait for each other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._db = self._empty()
        self._newest, self._oldest = 0, 0
        """The bounds of the known rows: oldest <= row <= newest; (0, 0): none."""
        self._complete = False
        self._read_s, self._stamp = -_FRESH_S, ()

    @staticmethod
    def _empty() -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        db.executescript(_SCHEMA)
        return db

    def read_more(self) -> bool:
        """Read another portion of older episodes and return whether there may be more.

        Raises:
            ConfigError: the log cannot be read.
        """
        with self._turn:
            self._refresh()
            if not self._complete:
                self._read_older(PORTION)
            return not self._complete

    def page(self, query: Query) -> dict[str, Any]:
        """Return a page of episodes. `complete` is False while older episodes are still unread.

        Raises:
            ConfigError: the log cannot be read.
        """
        where, values = query.where()
        select = f"SELECT {_COLUMNS}{_FROM}{where}{query.order()} LIMIT ? OFFSET ?"
        count = f"SELECT count(*){_FROM}{where}"

        def answer(db: sqlite3.Connection) -> dict[str, Any]:
            ((total,),) = db.execute(count, values)
            rows = db.execute(select, [*values, query.limit, query.offset])
            return {"total": total, "episodes": [_summary(row) for row in rows]}

        return self._asked(answer)

    def facets(self) -> dict[str, Any]:
        """Return the values to filter by, with the number of episodes of each, and the ranges."""

        def answer(db: sqlite3.Connection) -> dict[str, Any]:
            def counts(text: str) -> dict[str, int]:
                rows = db.execute(f"SELECT {text} AS it, count(*){_FROM} GROUP BY it ORDER BY it")
                return dict(rows.fetchall())

            forks: dict[str, int] = {}
            for text, episodes in counts("e.forks").items():
                for cause in parse_json(text):
                    forks[cause] = forks.get(cause, 0) + episodes
            ranges = "min(reward), max(reward), min(tokens), max(tokens), count(*)"
            ((low, high, few, many, total),) = db.execute(f"SELECT {ranges} FROM episodes")
            ((first, last),) = db.execute("SELECT min(step), max(step) FROM groups")
            return {
                "outcomes": counts("e.outcome"),
                "envs": counts("e.env"),
                "statuses": counts(STATUS),
                "forks": dict(sorted(forks.items())),
                "reward": [low or 0.0, high or 0.0],
                "tokens": [few or 0, many or 0],
                "steps": None if first is None else [first, last],
                "episodes": total,
            }

        return self._asked(answer)

    def of(self, episode_id: str) -> dict[str, Any]:
        """Return the summary of an episode.

        Raises:
            HttpError: there is no such episode in the log (404).
        """
        if not (rows := self._read(episode_id=episode_id)):
            raise missing(f"no episode {episode_id[:80]!r} in {self._path.parent.name}")
        return rows[0]

    def members(self, group_id: str) -> list[dict[str, Any]]:
        """Return the summaries of a group's episodes, in the order of their recording."""
        return self._read(group_id=group_id)

    def _read(self, *, episode_id: str = "", group_id: str = "") -> list[dict[str, Any]]:
        """Read episodes directly from the log: they may be older than the indexed ones."""
        if not _stamp(self._path):
            return []
        with self._turn:
            self._refresh()
            with closing(EpisodeReader(self._path)) as log:
                rows = log.facts(episode_id=episode_id, group_id=group_id, limit=2**62)
            self._insert(rows)
            name, value = ("e.grp", group_id) if group_id else ("e.id", episode_id)
            select = f"SELECT {_COLUMNS}{_FROM} WHERE {name} = ? ORDER BY e.row"
            return [_summary(row) for row in self._db.execute(select, (value,))]

    def _asked(self, answer: Callable[[sqlite3.Connection], dict[str, Any]]) -> dict[str, Any]:
        with self._turn:
            self._refresh()
            return {**answer(self._db), "complete": self._complete}

    def _refresh(self) -> None:
        """Read the new episodes and the groups of the log, if it has changed."""
        now = time.monotonic()
        if now - self._read_s < _FRESH_S:
            return
        stamp = _stamp(self._path)
        if stamp and stamp == self._stamp:
            self._read_s = now
            return
        if not stamp:
            self._forget()
            self._read_s = now
            self._complete = True
            return
        with closing(EpisodeReader(self._path)) as log:
            if log.num_recorded < self._newest:  # the folder belongs to another run now
                self._forget()
            if not self._newest:
                self._complete = False
                self._read_portion(log, FIRST)
                until = now + _FIRST_S
                while not self._complete and time.monotonic() < until:
                    self._read_portion(log, FIRST)
            else:
                self._add(log.facts(above=self._newest, limit=2**62))
            self._db.execute("BEGIN")
            rows = log.groups()
            self._db.executemany("INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?)", rows)
            self._db.execute("COMMIT")
        self._stamp, self._read_s = stamp, time.monotonic()

    def _read_older(self, limit: int) -> None:
        with closing(EpisodeReader(self._path)) as log:
            self._read_portion(log, limit)

    def _read_portion(self, log: EpisodeReader, limit: int) -> None:
        rows = log.facts(below=self._oldest or None, limit=limit)
        self._add(rows)
        self._complete = len(rows) < limit

    def _add(self, rows: list[Facts]) -> None:
        if not rows:
            return
        self._insert(rows)
        self._newest = max(self._newest, rows[0].row)
        self._oldest = min(self._oldest or rows[-1].row, rows[-1].row)

    def _insert(self, rows: list[Facts]) -> None:
        self._db.execute("BEGIN")
        insert = "INSERT OR REPLACE INTO episodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        self._db.executemany(insert, rows)
        self._db.execute("COMMIT")

    def _forget(self) -> None:
        self._db.close()
        self._db = self._empty()
        self._newest, self._oldest, self._complete, self._stamp = 0, 0, False, ()


def _summary(row: tuple[Any, ...]) -> dict[str, Any]:
    found = dict(zip(_KEYS, row, strict=True))
    found["forks"] = parse_json(found["forks"])
    return found


def _stamp(path: Path) -> tuple[tuple[int, int], ...]:
    """Return size and time of the log and of its write-ahead log; empty if there is no log."""
    found: list[tuple[int, int]] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            stat = file.stat()
        except OSError:
            continue
        found.append((stat.st_size, stat.st_mtime_ns))
    return tuple(found)
