"""The server of `arl inspect` with its background tasks."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from agentgym_rl.core import ArlError
from agentgym_rl.runtime import serving

from .app import LOOPBACK, Changes, InspectorApp
from .folders import InspectedRun, Runs

log = logging.getLogger(__name__)

ANYWHERE = ("0.0.0.0", "::")


class _Reading:
    """The background reader of older episodes, one run after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[InspectedRun] = asyncio.Queue()
        self._known: set[str] = set()

    def queue(self, run: InspectedRun) -> None:
        """Queue a run for reading; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._add, run)

    def _add(self, run: InspectedRun) -> None:
        if run.id not in self._known:
            self._known.add(run.id)
            self._waiting.put_nowait(run)

    async def run(self) -> None:
        while True:
            run = await self._waiting.get()  # until the server ends
            try:
                more = True
                while more:  # a portion at a time: requests for pages are served in between
                    more = await asyncio.to_thread(run.index.read_more)
            except (ArlError, OSError) as error:
                log.warning("episodes of %s: %s", run.id, error)
            self._known.discard(run.id)


async def inspect_live(
    places: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    read_only: bool = False,
    on_ready: Callable[[str, int], None],
) -> None:
    """Serve until cancelled. `on_ready` gets the URL, with the token if one is required, and the
    number of runs. If the server is `read_only`, the page does not write notes of runs.

    Raises:
        ConfigError: a place does not exist or lies inside a run, the port is taken, or the host is
            not an address of this machine.
    """
    runs = Runs(places)
    changes, reading = Changes(runs), _Reading()
    token = "" if host in LOOPBACK else secrets.token_urlsafe(24)
    app = InspectorApp(runs, changes, token=token, on_read=reading.queue, read_only=read_only)
    async with serving(app, host=host, port=port) as url, asyncio.TaskGroup() as tasks:
        tasks.create_task(changes.watch(), name="inspect:changes")
        tasks.create_task(reading.run(), name="inspect:reading")
        found = await asyncio.to_thread(runs.all)
        if host in ANYWHERE:  # the server listens on all addresses; this one cannot be opened
            url = f"http://{await asyncio.to_thread(_own_name)}:{url.rpartition(':')[2]}"
        on_ready(f"{url}/?token={token}" if token else f"{url}/", len(found))


def _own_name() -> str:
    """Return the host name of this machine if it can be resolved, else 127.0.0.1."""
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
    return socket.gethostname()
