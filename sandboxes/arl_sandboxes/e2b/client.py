"""The client of a runner: requests and their replies (`..runner` documents the protocol)."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentgym_rl import SandboxLost
from arl_sandboxes.runner_words import Refused

PROTOCOL = 1
EVENT = -1
"""The number of messages that answer no request."""


class Link(Protocol):
    """A connection to a runner."""

    id: str
    dead: str
    """The reason the connection is dead; "" while it is alive."""

    def send(self, line: bytes) -> None: ...
    def drop(self, why: str, *, kill_runner: bool = False) -> None: ...


class Client:
    """A client that matches replies with requests. The connection calls `heard` and `ended`."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._ids = itertools.count(1)
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._over = ""
        """The reason the runner has ended; the link may go on, with another runner."""
        self.on_event: Callable[[Mapping[str, Any]], None] = lambda event: None
        """The function that is called for each event, a message that answers no request."""
        self.on_close: Callable[[], None] = lambda: None

    async def request(self, op: str, *, deadline_s: float, **fields: Any) -> dict[str, Any]:
        """Send a request and wait for the reply; cancellation also stops a `run_python` or `exec`.

        Raises:
            Refused: the runner refused; the message is the runner's.
            SandboxLost: the sandbox ended, or does not answer.
        """
        number = next(self._ids)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._open[number] = reply
        try:
            self._send({"id": number, "op": op, **fields})
            async with asyncio.timeout(deadline_s):
                return await reply
        except TimeoutError:
            why = f"its runner did not answer {op!r} within {deadline_s:g} s"
            self.link.drop(why, kill_runner=True)
            raise SandboxLost(f"{self.link.id}: {self.link.dead}") from None
        except asyncio.CancelledError:
            if op in ("run_python", "exec"):
                self.post("cancel", of=number)
            raise
        finally:
            del self._open[number]

    def post(self, op: str, **fields: Any) -> None:
        """Send a request without waiting for the reply; do nothing if the connection is dead."""
        if not self.link.dead and not self._over:
            self._send({"id": next(self._ids), "op": op, **fields})

    def heard(self, line: str) -> None:
        said = json.loads(line)
        if said["id"] == 0 and "error" in said:
            self.link.drop(f"its runner gave up: {said['error']}")
            return
        if said["id"] == EVENT:
            self.on_event(said["event"])
            return
        reply = self._open.get(said["id"])
        if reply is None or reply.done():
            return  # no request waits for it
        if "ok" in said:
            reply.set_result(said["ok"])
        else:
            reply.set_exception(Refused(said["error"], said["errno"]))

    def ended(self, why: str) -> None:
        self._over = why
        for reply in self._open.values():
            if not reply.done():
                reply.set_exception(SandboxLost(f"{self.link.id}: {why}"))
        self.on_close()

    def _send(self, request: dict[str, Any]) -> None:
        if self._over:
            raise SandboxLost(f"{self.link.id}: {self._over}")
        self.link.send(json.dumps(request).encode() + b"\n")
