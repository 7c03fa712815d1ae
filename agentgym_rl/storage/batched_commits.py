"""One transaction for all who wait: what comes while another is under way goes into the next.

A commit costs about as much for a thousand statements as for one. So the more there is to write,
the less each costs, and nobody waits for longer than the transaction before and his own.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import chain

from agentgym_rl.core.errors import StorageError

Statement = tuple[str, tuple[object, ...]]
Run = Callable[[Sequence[Statement], bool], None]
"""Does statements in a transaction; the flag: on disk when it returns."""

_MOST = 512
"""Requests that a transaction serves: whoever comes last waits for all of them."""
_ROWS = (64, 16, 4, 1)
"""That one statement inserts: few forms, so that SQLite has them all prepared."""
_ERRORS = (sqlite3.Error, StorageError)


def merged(statements: Sequence[Statement]) -> list[Statement]:
    """The same in fewer statements: rows that are inserted by one text go in together, and before
    all that is no INSERT. (Whoever changes a row has been told before that it is there.)

    For each statement sqlite3 gives the interpreter away and waits to have it back, up to 5 ms
    where the event loop is busy.
    """
    if len(statements) < 2:
        return [*statements]
    inserts: dict[str, list[tuple[object, ...]]] = {}
    others: list[Statement] = []
    for statement in statements:
        if statement[0].startswith("INSERT"):
            inserts.setdefault(statement[0], []).append(statement[1])
        else:
            others.append(statement)
    found: list[Statement] = []
    for text, rows in inserts.items():
        head, _, places = text.partition(" VALUES ")
        start = 0
        for size in _ROWS:
            while len(rows) - start >= size:
                values = tuple(chain.from_iterable(rows[start : start + size]))
                found.append((f"{head} VALUES {', '.join([places] * size)}", values))
                start += size
    return found + others


@dataclass(slots=True, eq=False)
class _Request:
    """Statements that are done together or not at all, and who waits for them."""

    statements: Sequence[Statement]
    durably: bool
    done: asyncio.Future[None]


class GroupCommit:
    """Requests, in their order. One event loop at a time."""

    def __init__(self, run: Run, *, executor: Executor | None = None) -> None:
        """`executor`: where transactions run, one at a time; None: a thread of the loop's."""
        self._run = run
        self._executor = executor
        self._waiting: deque[_Request] = deque()
        self._is_writing = False

    async def do(self, statements: Sequence[Statement], *, durably: bool = False) -> None:
        """Done when this returns, and all before it. Of a caller that was cancelled it is done
        with the next one's at the latest, unless the event loop ends.

        Raises:
            sqlite3.Error, StorageError: it failed; others that came with it did not.
        """
        request = _Request(statements, durably, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if not self._is_writing:
            self._write_next()
        await request.done

    def _write_next(self) -> None:
        count = min(len(self._waiting), _MOST)
        requests = [self._waiting.popleft() for _ in range(count)]
        self._is_writing = True
        writing = asyncio.get_running_loop().run_in_executor(self._executor, self._write, requests)
        writing.add_done_callback(partial(self._wrote, requests))

    def _wrote(
        self, requests: Sequence[_Request], writing: asyncio.Future[list[Exception | None]]
    ) -> None:
        """Tell those who wait, and go on with those who came meanwhile."""
        self._is_writing = False
        if writing.cancelled():  # the event loop ends
            return
        raised = writing.exception()
        errors = [raised] * len(requests) if raised else writing.result()
        for request, error in zip(requests, errors, strict=True):
            if request.done.cancelled():
                continue
            if error is None:
                request.done.set_result(None)
            else:
                request.done.set_exception(error)
        if not all(request.done.cancelled() for request in self._waiting):
            self._write_next()

    def _write(self, requests: Sequence[_Request]) -> list[Exception | None]:
        """One transaction; where that fails one for each request, so that none fails of another's
        error. What was wrong with each."""
        if len(requests) > 1:
            together = [statement for request in requests for statement in request.statements]
            try:
                self._run(together, any(request.durably for request in requests))
            except _ERRORS:
                pass  # whose fault it is will be seen
            else:
                return [None] * len(requests)
        return [self._error_of(request) for request in requests]

    def _error_of(self, request: _Request) -> Exception | None:
        try:
            self._run(request.statements, request.durably)
        except _ERRORS as error:
            return error
        return None
