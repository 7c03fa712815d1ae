"""`arl inspect`, put together: runs, what watches them, and the server."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentgym_rl.core.errors import ArlError
from agentgym_rl.runtime.http_server import serving

from .app import LOOPBACK, InspectorApp
from .changes import Changes
from .export import write_html
from .folders import InspectedRun, Runs

log = logging.getLogger(__name__)

ANYWHERE = ("0.0.0.0", "::")


class _Reading:
    """Older episodes are read beside what is asked, one run after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Queue[InspectedRun] = asyncio.Queue()
        self._known: set[str] = set()

    def ask(self, run: InspectedRun) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._add, run)

    def _add(self, run: InspectedRun) -> None:
        if run.id not in self._known:
            self._known.add(run.id)
            self._asked.put_nowait(run)

    async def run(self) -> None:
        while True:
            run = await self._asked.get()  # for as long as the server lives
            try:
                more = True
                while more:  # a portion at a time: those who ask for a page come in between
                    more = await asyncio.to_thread(run.index.read_more)
            except (ArlError, OSError) as error:
                log.warning("episodes of %s: %s", run.id, error)
            self._known.discard(run.id)


async def inspect_live(
    places: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    on_ready: Callable[[str, int], None],
) -> None:
    """Serve until cancelled. `on_ready` gets the URL, with the token where one is wanted, and how
    many runs there are.

    Raises:
        ConfigError: a place does not exist or lies inside a run, the port is taken, or the host is
            none of this machine's.
    """
    runs = Runs(places)
    changes, reading = Changes(runs), _Reading()
    token = "" if host in LOOPBACK else secrets.token_urlsafe(24)
    app = InspectorApp(runs, changes, token=token, on_read=reading.ask)
    async with serving(app, host=host, port=port) as url, asyncio.TaskGroup() as tasks:
        tasks.create_task(changes.watch(), name="inspect:changes")
        tasks.create_task(reading.run(), name="inspect:reading")
        found = await asyncio.to_thread(runs.all)
        if host in ANYWHERE:  # listens on all addresses, and is none of them
            url = f"http://{await asyncio.to_thread(_own_name)}:{url.rpartition(':')[2]}"
        on_ready(f"{url}/?token={token}" if token else f"{url}/", len(found))


def _own_name() -> str:
    """Of this machine, if it knows itself by one."""
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
    return socket.gethostname()


def write_page(
    places: Sequence[Path],
    out: Path,
    *,
    episodes: int = 200,
    on_progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Write one page that shows the runs without a server; what is in it. Blocking.

    Raises:
        ConfigError: a place does not exist, a run cannot be read, or `out` is there.
    """
    return write_html(Runs(places).all(), out, episodes=episodes, on_progress=on_progress)
