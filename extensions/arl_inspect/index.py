"""An index for the table of episodes, in a database of its own: SQLite keeps it in memory, and
what does not fit in an unnamed temporary file. Nothing is written into the run's folder.

The log is read backwards from the newest episode, a few thousand at a time, so that the first rows
are there at once. Later, only new episodes and the states of the groups are read. Records, with
the texts, are read for the rows that are shown; those of all other episodes, again from the newest
on, once a query needs them (`Query.needs_texts`).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from agentgym_rl.core import parse_json
from agentgym_rl.storage import EpisodeReader
from agentgym_rl.storage.episode_reader import Facts

from .query import STATUS, Query, missing
from .texts import short, task_data, texts_of

FIRST = 1000
"""The number of episodes of the first portion."""
_FIRST_S = 0.15
"""The seconds of reading more such portions before the first answer: this completes most logs."""
PORTION = 5000
_CACHE_KB = 64 * 1024
"""The size of the index beyond which SQLite keeps parts of it in a temporary file."""
_TEXTS = 500
_TEXTS_AT_ONCE = 1000
"""The number of records that are read at once: while a request waits, and between requests. Those
wait for each other, so the latter number is small too."""
_SAMPLE = 20
"""The number of newest episodes of which the names of seats are taken."""
_FRESH_S = 0.5
"""The seconds after a read in which the log is not read again."""
_SCHEMA = """
CREATE TABLE episodes (row INTEGER PRIMARY KEY, id TEXT UNIQUE, grp TEXT, outcome TEXT,
    reward REAL, turns INTEGER, tokens INTEGER, env TEXT, forks TEXT);
CREATE TABLE groups (id TEXT PRIMARY KEY, task TEXT, status TEXT, cause TEXT, step INTEGER);
CREATE INDEX episodes_by_group ON episodes (grp);
CREATE TABLE known (row INTEGER PRIMARY KEY, has_task INTEGER, oldest INTEGER, newest INTEGER,
    seats TEXT);
CREATE TABLE glances (row INTEGER PRIMARY KEY, question TEXT, answer TEXT, expected TEXT,
    verdict TEXT, parts TEXT);
CREATE TABLE texts (row INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE found (row INTEGER PRIMARY KEY);
"""
_FROM = " FROM episodes e LEFT JOIN groups g ON g.id = e.grp"
_KNOWN = f"{_FROM} LEFT JOIN known k ON k.row = e.row"
_GLANCED = f"{_KNOWN} LEFT JOIN glances t ON t.row = e.row"
_LACKING = "(k.row IS NULL OR (k.has_task = 0 AND g.id IS NOT NULL))"
"""The SQL condition for episodes whose record is to be read: it was not, or its group, which brings
the task, was not complete then."""
_COLUMNS = (
    "e.id, e.grp, coalesce(g.task, ''), e.env, e.outcome, e.reward, e.turns, e.tokens, e.forks, "
    f"{STATUS} AS status, coalesce(g.cause, ''), g.step AS step, e.row, "
    "coalesce(t.question, ''), coalesce(t.answer, ''), coalesce(t.expected, ''), "
    "coalesce(t.verdict, ''), coalesce(t.parts, '{}'), coalesce(k.seats, '{}'), k.oldest, k.newest"
)
_KEYS = (
    *("id", "group", "task", "env", "outcome", "reward", "turns", "tokens", "forks"),
    *("status", "cause", "step", "row", "question", "answer", "expected", "verdict"),
    *("parts", "seats", "oldest_version", "newest_version"),
)
_SEATS = "SELECT DISTINCT s.key FROM known, json_each(seats) s WHERE seats != '{}' ORDER BY 1"
_OBJECTS = ("forks", "parts", "seats")
"""The keys whose values are JSON objects."""


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
        self._needs_texts = False
        """Whether a query has needed the texts of all episodes."""
        self._words: list[str] = []
        """The words of the last search, whose episodes are in the table `found`."""
        self._num_texts, self._lacks_texts = 0, True

    @staticmethod
    def _empty() -> sqlite3.Connection:
        db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        db.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
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
                return True
            return self._needs_texts and self._read_texts(_TEXTS_AT_ONCE)

    def page(self, query: Query) -> dict[str, Any]:
        """Return a page of episodes. `complete` is False while older episodes are still unread, or
        texts that the query needs; `searched` is the number of episodes whose texts are known.

        Raises:
            ConfigError: the log cannot be read.
        """
        where, values = query.where()
        order = f"{where}{query.order()} LIMIT ? OFFSET ?"
        page = [*values, query.limit, query.offset]

        def answer(db: sqlite3.Connection) -> dict[str, Any]:
            is_whole = self._search(query) if query.needs_texts else True
            ((total,),) = db.execute(f"SELECT count(*){_KNOWN}{where}", values)
            rows = [row for (row,) in db.execute(f"SELECT e.row{_KNOWN}{order}", page)]
            these = f"e.row IN ({', '.join(map(str, rows))})"
            self._glance(self._lacking(these, len(rows)))
            found = db.execute(f"SELECT {_COLUMNS}{_GLANCED} WHERE {these}")
            by_row = {summary["row"]: summary for summary in map(_summary, found)}
            return {
                "total": total,
                "episodes": [by_row[row] for row in rows],
                "complete": self._complete and is_whole,
                "searched": self._num_texts,
            }

        return self._asked(answer)

    def place(self, query: Query, episode_id: str) -> dict[str, Any]:
        """Return the place of an episode in the list of a query, and its neighbours there: `place`
        counts from 1; 0: it is not in the list."""
        where, values = query.where()
        window = f"OVER ({query.order().strip()})"
        ranked = (
            f"SELECT e.id AS id, row_number() {window} AS place, lag(e.id) {window} AS previous, "
            f"lead(e.id) {window} AS next{_KNOWN}{where}"
        )

        def answer(db: sqlite3.Connection) -> dict[str, Any]:
            if query.needs_texts:
                self._search(query)
            ((total,),) = db.execute(f"SELECT count(*){_KNOWN}{where}", values)
            find = f"SELECT place, previous, next FROM ({ranked}) WHERE id = ?"
            row = db.execute(find, [*values, episode_id]).fetchone() or (0, None, None)
            return {**dict(zip(("place", "previous", "next"), row, strict=True)), "total": total}

        return self._asked(answer)

    def _search(self, query: Query) -> bool:
        """Read texts for a moment, note the episodes that have the words of the query, and return
        whether the texts of all episodes are known."""
        self._needs_texts = True
        if query.words != self._words:
            self._words = query.words
            has = " AND ".join(["instr(text, ?) > 0"] * len(self._words))
            self._db.execute("DELETE FROM found")
            if self._words:
                self._db.execute(
                    f"INSERT INTO found SELECT row FROM texts WHERE {has}", self._words
                )
        until, more = time.monotonic() + _FIRST_S, self._read_texts(_TEXTS)
        while more and time.monotonic() < until:
            more = self._read_texts(_TEXTS)
        return not more

    def _lacking(self, condition: str, limit: int) -> list[int]:
        rows = self._db.execute(
            f"SELECT e.row{_KNOWN} WHERE {condition} AND {_LACKING} ORDER BY e.row DESC LIMIT ?",
            (limit,),
        )
        return [row for (row,) in rows]

    def _read_texts(self, limit: int) -> bool:
        """Read the records of the newest episodes that lack them; return whether there may be
        more."""
        rows = self._lacking("1", limit) if self._lacks_texts else []
        self._glance(rows)
        self._lacks_texts = len(rows) == limit
        return self._lacks_texts

    def _glance(self, rows: Sequence[int]) -> None:
        """Read the records of episodes into the index."""
        if not rows or not _stamp(self._path):
            return
        known, shown, texts = list[Any](), list[Any](), list[tuple[int, str]]()
        with closing(EpisodeReader(self._path)) as log:
            for row, glance, data in log.glances(rows):
                found, versions = texts_of(glance, task_data(data)), glance.versions or [None]
                seats = _json({seat.seat: seat.reward for seat in glance.seats})
                known.append((row, data is not None, versions[0], versions[-1], seats))
                said = (found.question, found.answer, found.expected, short(glance.verdict))
                shown.append((row, *said, _json(glance.reward_parts)))
                texts.append((row, found.everything))
        has = [(row,) for row, text in texts if all(word in text for word in self._words)]
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO known VALUES (?, ?, ?, ?, ?)", known)
        self._db.executemany("INSERT OR REPLACE INTO glances VALUES (?, ?, ?, ?, ?, ?)", shown)
        self._db.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?)", texts)
        if self._words:
            self._db.executemany("INSERT OR IGNORE INTO found VALUES (?)", has)
        self._db.execute("COMMIT")
        ((self._num_texts,),) = self._db.execute("SELECT count(*) FROM known")

    def facets(self) -> dict[str, Any]:
        """Return the values to filter by, with the number of episodes of each, and the ranges."""

        def answer(db: sqlite3.Connection) -> dict[str, Any]:
            def counts(text: str) -> dict[str, int]:
                rows = db.execute(f"SELECT {text} AS it, count(*){_FROM} GROUP BY it ORDER BY it")
                return dict(rows.fetchall())

            self._glance(self._lacking("1", _SAMPLE))  # for the seats
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
                "seats": [seat for (seat,) in db.execute(_SEATS)],
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
            self._glance([row.row for row in rows])
            name, value = ("e.grp", group_id) if group_id else ("e.id", episode_id)
            select = f"SELECT {_COLUMNS}{_GLANCED} WHERE {name} = ? ORDER BY e.row"
            return [_summary(row) for row in self._db.execute(select, (value,))]

    def _asked(self, answer: Callable[[sqlite3.Connection], dict[str, Any]]) -> dict[str, Any]:
        with self._turn:
            self._refresh()
            return {"complete": self._complete, **answer(self._db)}

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
        self._stamp, self._read_s, self._lacks_texts = stamp, time.monotonic(), True

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
        self._words, self._num_texts, self._lacks_texts = [], 0, True


def _json(value: Mapping[str, float]) -> str:
    return msgspec.json.encode(value).decode()


def _summary(row: tuple[Any, ...]) -> dict[str, Any]:
    found = dict(zip(_KEYS, row, strict=True))
    return found | {name: parse_json(found[name]) for name in _OBJECTS}


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
