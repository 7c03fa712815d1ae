"""The tables of the shop, in SQLite in memory."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

Rows = Mapping[str, Sequence[Sequence[Any]]]
"""The rows by table."""
Row = tuple[Any, ...]
"""The identity of a row: its table and its key there."""

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, phone INTEGER);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, price INTEGER, stock INTEGER);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer INTEGER, status TEXT, days INTEGER, city TEXT
);
CREATE TABLE lines (orders INTEGER, product INTEGER, quantity INTEGER);
CREATE TABLE payments (orders INTEGER PRIMARY KEY, amount INTEGER, refunded INTEGER);
CREATE TABLE appointments (id INTEGER PRIMARY KEY, customer INTEGER, day INTEGER, hour INTEGER);
CREATE TABLE tickets (id INTEGER PRIMARY KEY, customer INTEGER, subject TEXT, status TEXT);
"""
TABLES = ("customers", "products", "orders", "lines", "payments", "appointments", "tickets")
_KEYS = {table: 2 if table == "lines" else 1 for table in TABLES}
"""The first columns of a table that identify a row."""


class Database:
    """A world. `image`: the result of another one's `image()`; without it the tables are empty."""

    def __init__(self, image: bytes | None = None) -> None:
        # Used by one thread at a time, but garbage collection may close it in any thread.
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        self._connection.deserialize(_empty() if image is None else image)
        self.changed: set[Row] = set()
        """The rows that `run` ever changed, even if they were restored later."""

    @classmethod
    def of(cls, rows: Rows) -> Database:
        """Make a world of these rows."""
        made = cls()
        made._connection.execute("BEGIN")
        for table, found in rows.items():
            if found:
                marks = ", ".join("?" * len(found[0]))
                made._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", found)
        made._connection.execute("COMMIT")
        return made

    def image(self) -> bytes:
        """Return the complete database as bytes, for another `Database`."""
        return self._connection.serialize()

    def all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        return self._connection.execute(query, values).fetchall()

    def run(self, statement: str, *values: Any) -> None:
        """Run a statement that writes; add the changed rows to `changed`."""
        before = self._rows()
        self._connection.execute(statement, values)
        self.changed |= {row[: 1 + _KEYS[row[0]]] for row in before ^ self._rows()}

    def state(self) -> str:
        """Return a digest of all rows of all tables, whatever their order."""
        found = {table: sorted(self.all(f"SELECT * FROM {table}")) for table in TABLES}
        return hashlib.blake2b(json.dumps(found).encode(), digest_size=16).hexdigest()

    def _rows(self) -> set[Row]:
        return {(table, *row) for table in TABLES for row in self.all(f"SELECT * FROM {table}")}

    def close(self) -> None:
        """Close the database and free its memory; idempotent."""
        self._connection.close()

    def __del__(self) -> None:
        self.close()


@cache
def _empty() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    image = connection.serialize()
    connection.close()
    return image
