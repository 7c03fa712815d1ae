"""The commits of many requests in one transaction: requests that arrive during a transaction go
into the next one.

A commit costs about as much for a thousand statements as for one. So the cost per request falls
under load, and a request waits at most for the previous transaction and its own.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from agentgym_rl.core import StorageError

Statement = tuple[str, tuple[object, ...]]
Run = Callable[[Sequence[Statement], bool], None]
"""A function that runs statements in a transaction; the second argument is whether they are synced
to disk when it returns."""

_MOST = 512
"""The maximum number of requests in a transaction: the last one waits for all of them."""
_ROWS = (64, 16, 4, 1)
"""The numbers of rows per insert statement: few forms, so that SQLite keeps all statements
prepared."""
_ERRORS = (sqlite3.Error, StorageError)


def merged(statements: Sequence[Statement]) -> list[Statement]:
    """Return equivalent, fewer statements: rows with the same INSERT text are inserted together,
    and before all other statements. (A row is only changed after its insert was reported done.)

    For each statement sqlite3 releases the GIL and waits to get it back, up to 5 ms if the event
    loop is busy.
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
    """A set of statements that are run together or not at all, with the future of their caller."""

    statements: Sequence[Statement]
    durably: bool
    done: asyncio.Future[None]


class GroupCommit:
    """A queue of requests, committed in order. One event loop at a time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: deque[_Request] = deque()
        self._is_writing = False

    async def do(self, statements: Sequence[Statement], *, durably: bool = False) -> None:
        """Run statements; they and all earlier ones are done when this returns.

        The statements of a cancelled caller are run with the next request at the latest, unless the
        event loop ends.

        Raises:
            sqlite3.Error, StorageError: this request failed; others in its transaction did not.
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
        writing = asyncio.get_running_loop().run_in_executor(None, self._write, requests)
        writing.add_done_callback(partial(self._wrote, requests))

    def _wrote(
        self, requests: Sequence[_Request], writing: asyncio.Future[list[Exception | None]]
    ) -> None:
        """Report to the callers, and continue with requests that have arrived meanwhile."""
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
        """Run one transaction; if it fails, one for each request, so that no request fails because
        of another's error. Return the error of each."""
        if len(requests) > 1:
            together = [statement for request in requests for statement in request.statements]
            try:
                self._run(together, any(request.durably for request in requests))
            except _ERRORS:
                pass  # the single transactions show which request failed
            else:
                return [None] * len(requests)
        return [self._error_of(request) for request in requests]

    def _error_of(self, request: _Request) -> Exception | None:
        try:
            self._run(request.statements, request.durably)
        except _ERRORS as error:
            return error
        return None
