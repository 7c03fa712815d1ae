"""The file of verdicts: no process sends a question again that has been answered once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from agentgym_rl import EnvError, InfraError

_BUSY_S = 30.0
"""The longest wait for another process that writes."""


_PASSING = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
    sqlite3.SQLITE_CANTOPEN,  # too many files of this process are open
)
"""The errors that may end by themselves, or with the fault of a disk."""


class VerdictCache:
    """A SQLite file of verdicts by the hash of their question. Each call opens the file, so that
    threads, forks and other processes may use it at the same time; it has to be on a local disk.

    The journal is SQLite's default: a change to WAL fails at once, without waiting, while another
    connection writes (https://www.sqlite.org/c3ref/busy_handler.html)."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __str__(self) -> str:
        return str(self._path)

    async def get(self, question: str) -> int | None:
        """Return the verdict on a question; None if it has not been answered.

        Raises:
            InfraError: other processes keep the file locked, or the disk fails.
            EnvError: the file is no cache, or cannot be written.
        """
        return await asyncio.to_thread(self._get, _hash(question))

    async def put(self, question: str, score: int) -> int:
        """Keep a verdict, unless the question has one already; return the kept verdict. Two
        processes with the same question at the same time so use the same verdict.

        Raises:
            InfraError, EnvError: as `get`.
        """
        return await asyncio.to_thread(self._put, _hash(question), score)

    def _get(self, key: str) -> int | None:
        with self._open() as db:
            found = db.execute("SELECT score FROM verdicts WHERE key = ?", (key,)).fetchone()
        return found and found[0]

    def _put(self, key: str, score: int) -> int:
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", (key, score))
            ((kept,),) = db.execute("SELECT score FROM verdicts WHERE key = ?", (key,))
            db.execute("COMMIT")
        return kept

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(
                sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            ) as db:
                db.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, score INT)")
                yield db
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING:
                raise InfraError(f"judge's cache {self._path}: {error}") from error
            raise EnvError(
                f"judge's cache {self._path}: {error}; remove the file, or name another"
            ) from error
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise EnvError(f"judge's cache {self._path}: {error}; name another file") from error
        except OSError as error:
            raise InfraError(f"judge's cache {self._path}: {error}") from error


def _hash(question: str) -> str:
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()
