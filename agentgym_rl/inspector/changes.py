"""The changes of runs, sent to all listening clients as Server-Sent Events.

The format is WHATWG's, https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from agentgym_rl.core.errors import ArlError
from agentgym_rl.runtime.http_server import Receive, Send

from .folders import Runs

_LOOK_S = 1.0
_SEND_S = 0.25
_COMMENT_S = 15.0


class Changes:
    """A watcher of all runs: clients share one look per second; without clients there is none."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._pulses: dict[str, Mapping[str, Any]] = {}
        self._listeners = 0

    async def watch(self) -> None:
        """Look at the runs every second while there are clients, until cancelled."""
        while True:
            if self._listeners:
                self._pulses = await asyncio.to_thread(self._look)
            await asyncio.sleep(_LOOK_S if self._listeners else _SEND_S)

    def _look(self) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for run in self._runs.all():
            try:
                found[run.id] = run.pulse()
            except (ArlError, OSError) as error:  # the run's own routes report the error
                found[run.id] = {
                    **{"run": run.id, "steps": 0, "episodes": 0, "status": "stopped"},
                    "error": str(error),
                }
        return found

    async def stream(self, receive: Receive, send: Send, headers: Mapping[str, str]) -> None:
        """Send changes until the client leaves: all those after the start of the answer, and none
        from before."""
        known = self._pulses = await asyncio.to_thread(self._look)
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw.append((b"content-type", b"text/event-stream"))
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await _write(send, ": arl inspect\n\n")
        self._listeners += 1
        try:
            said_s = time.monotonic()
            while not await _has_left(receive):
                seen = self._pulses
                texts = [_event(seen[id]) for id in seen if seen[id] != known.get(id)]
                texts += [_event({"run": id, "gone": True}) for id in known if id not in seen]
                if not texts and time.monotonic() - said_s >= _COMMENT_S:
                    texts = [": alive\n\n"]
                if texts:
                    await _write(send, "".join(texts))
                    said_s = time.monotonic()
                known = seen
        finally:
            self._listeners -= 1


def _event(pulse: Mapping[str, Any]) -> str:
    return f"event: change\ndata: {msgspec.json.encode(pulse).decode()}\n\n"


async def _write(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _has_left(receive: Receive) -> bool:
    """Return whether the client is gone; wait up to `_SEND_S` if it is not."""
    try:
        async with asyncio.timeout(_SEND_S):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True
