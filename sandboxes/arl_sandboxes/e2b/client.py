"""Requests to a runner and its replies (`..runner` has the protocol)."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any, Protocol

from agentgym_rl.core.errors import SandboxLost
from arl_sandboxes.runner_words import Refused

PROTOCOL = 1


class Link(Protocol):
    """The way to a runner."""

    id: str
    dead: str
    """Why it can be used no more."""

    def send(self, line: bytes) -> None: ...
    def drop(self, why: str, *, kill_runner: bool = False) -> None: ...


class Client:
    """Matches replies with requests. `heard` and `ended` are for the link to call."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._ids = itertools.count(1)
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def request(self, op: str, *, deadline_s: float, **fields: Any) -> dict[str, Any]:
        """Ask, and wait for the reply; a cancelled `run_python` or `exec` is cancelled there too.

        Raises:
            Refused: with the runner's words.
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
            if not self.link.dead and op in ("run_python", "exec"):
                self._send({"id": next(self._ids), "op": "cancel", "of": number})
            raise
        finally:
            del self._open[number]

    def post(self, op: str, **fields: Any) -> None:
        """Ask, and do not wait; nothing where nobody listens any more."""
        if not self.link.dead:
            self._send({"id": next(self._ids), "op": op, **fields})

    def heard(self, line: str) -> None:
        said = json.loads(line)
        if said["id"] == 0 and "error" in said:
            self.link.drop(f"its runner gave up: {said['error']}")
            return
        reply = self._open.get(said["id"])
        if reply is None or reply.done():
            return  # nobody waits for it any more
        if "ok" in said:
            reply.set_result(said["ok"])
        else:
            reply.set_exception(Refused(said["error"], said["errno"]))

    def ended(self, why: str) -> None:
        for reply in self._open.values():
            if not reply.done():
                reply.set_exception(SandboxLost(f"{self.link.id}: {why}"))

    def _send(self, request: dict[str, Any]) -> None:
        self.link.send(json.dumps(request).encode() + b"\n")
