"""The client of a runner: requests and their replies (`runner.py` documents the protocol)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentgym_rl import SandboxLost

from .runner_words import RunnerError

PROTOCOL = 1
HELLO, EVENT = 0, -1
"""The numbers of the runner's first message, and of messages that answer no request."""


class Link(Protocol):
    """A connection to a runner, which calls `on_line` for each line, and `on_end` at its end."""

    id: str
    dead: str
    """The reason the connection is dead; "" while it is alive."""
    on_line: Callable[[str], None]
    on_end: Callable[[str], None]

    def send(self, line: bytes) -> None: ...
    def drop(self, why: str, *, kill_runner: bool = False) -> None: ...


class Client:
    """A client that matches the replies of a runner with requests."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._ids = itertools.count(1)
        self._hello: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {HELLO: self._hello}
        self._over = ""
        """The reason the runner has ended; the link may go on, with another runner."""
        self.on_event: Callable[[Mapping[str, Any]], None] = lambda event: None
        """The function that is called for each event, a message that answers no request."""
        self.on_close: Callable[[], None] = lambda: None
        link.on_line, link.on_end = self._receive, self.end

    @property
    def dead(self) -> str:
        """Return the reason that no request can be sent; "" if one can."""
        return self._over or self.link.dead

    async def hello(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the runner's description of itself, the first line of the protocol.

        Raises:
            SandboxLost: the runner did not start.
        """
        return await self._wait(self._hello, "start", timeout_s)

    async def request(self, op: str, *, deadline_s: float, **fields: Any) -> dict[str, Any]:
        """Send a request and wait for the reply; if it is cancelled, the runner gives up too.

        Raises:
            RunnerError: the runner refused; the message is the runner's.
            SandboxLost: the sandbox ended, or does not answer.
        """
        number = next(self._ids)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[number] = reply
        try:
            self._send({"id": number, "op": op, **fields})
            return await self._wait(reply, op, deadline_s)
        except asyncio.CancelledError:
            self.post("cancel", of=number)
            raise
        finally:
            self._open.pop(number, None)

    def post(self, op: str, **fields: Any) -> None:
        """Send a request without waiting for the reply; do nothing if the connection is dead."""
        if not self.dead:
            self._send({"id": next(self._ids), "op": op, **fields})

    def end(self, why: str) -> None:
        """Fail all requests: the runner has ended."""
        self._over = self._over or why
        for reply in self._open.values():
            if not reply.done():
                reply.set_exception(SandboxLost(f"{self.link.id}: {self._over}"))
                reply.add_done_callback(lambda done: done.exception())  # nobody may wait for it
        self.on_close()

    async def _wait(
        self, reply: asyncio.Future[dict[str, Any]], what: str, timeout_s: float
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError:
            why = f"its runner did not answer {what!r} within {timeout_s:g} s"
            self.link.drop(why, kill_runner=True)
            raise SandboxLost(f"{self.link.id}: {self.link.dead}") from None

    def _receive(self, line: str) -> None:
        try:
            message = json.loads(line)
            number = message["id"]
        except (ValueError, KeyError):
            self.link.drop(f"its runner sent {line[:200]!r}")
            return
        if number == HELLO and "error" in message:
            self.link.drop(f"its runner gave up: {message['error']}")
        elif number == EVENT:
            self.on_event(message["event"])
        elif (reply := self._open.get(number)) is None or reply.done():
            pass  # no request waits for it
        elif "ok" in message:
            reply.set_result(message["ok"])
        else:
            reply.set_exception(RunnerError(message["error"], message["errno"]))

    def _send(self, request: dict[str, Any]) -> None:
        if self.dead:
            raise SandboxLost(f"{self.link.id}: {self.dead}")
        self.link.send(json.dumps(request).encode() + b"\n")
