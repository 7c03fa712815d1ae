"""A machine of E2B, and the lines sent to and received from the runner in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Callable

from e2b import AsyncCommandHandle, AsyncSandbox, CommandExitException

from agentgym_rl import SandboxError, SandboxLost
from agentgym_rl.core import ImageError
from arl_sandboxes.runner import source
from arl_sandboxes.runner_client import PROTOCOL

from . import inside
from .calls import FAILURES, deadline
from .inside import RunnerConfig

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 19
"""The largest input of one call."""
NO_LIMIT = 0
STDERR_CHARS = 2000
DISCONNECT_S = 2.0


class Machine:
    """A machine; `on_line` receives each line of its runner, `on_end` the reason of its end.

    Its two tasks, which read and write, belong to `tasks`; `drop` ends them.
    """

    def __init__(self, sdk: AsyncSandbox, tasks: asyncio.TaskGroup, call_timeout_s: float) -> None:
        self.id = sdk.sandbox_id
        self.dead = ""
        self.config: RunnerConfig | None = None
        """The environment of the runner; None: there is no runner yet."""
        self.on_line: Callable[[str], None] = lambda line: None
        self.on_end: Callable[[str], None] = lambda why: None
        self._sdk, self._tasks, self._timeout_s = sdk, tasks, call_timeout_s
        self._pid = 0
        self._uploaded = False
        self._exited = False
        """True if the runner has ended by itself."""
        self._own: list[asyncio.Task[None]] = []
        self._rest: list[str] = []
        self._stderr: deque[str] = deque(maxlen=20)
        self._lines: deque[bytes] = deque()
        self._more = asyncio.Event()

    async def start_runner(self, config: RunnerConfig) -> None:
        """Upload the runner, start it, and wait for its first line. If the machine has a runner
        already, that one is killed first, with all its processes and files.

        Raises:
            ImageError: no runner starts from the image.
            SandboxError: the runner did not start.
        """
        await self._end_runner()
        await self._upload(config)
        first_line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_line = lambda line: None if first_line.done() else first_line.set_result(line)
        self.on_end = lambda why: None if first_line.done() else first_line.set_result("")
        async with deadline(f"start the runner in {self.id}", self._timeout_s):
            handle = await self._sdk.commands.run(
                inside.command(config),
                background=True,
                user="root",
                cwd="/",
                stdin=True,
                timeout=NO_LIMIT,
                on_stdout=self._receive,
                on_stderr=self._stderr.append,
                retain_output=False,
            )
            if self.dead:  # since its backend was closed in the meantime
                await handle.disconnect()
                raise SandboxLost(f"{self.id}: {self.dead}")
            self._pid = handle.pid
            self._own = [
                self._tasks.create_task(self._watch(handle), name=f"watch {self.id}"),
                self._tasks.create_task(self._feed(), name=f"feed {self.id}"),
            ]
            greeting = await first_line
        if not greeting:
            why = f"the runner did not start in {self.id}: {self.dead}"
            if config.world is not None and self._exited:
                raise ImageError(f"{why} (an image needs {config.python}, 3.8 or newer, and tar)")
            raise SandboxError(why)
        if (protocol := json.loads(greeting)["ok"]["protocol"]) != PROTOCOL:
            raise SandboxError(f"{self.id}: runner protocol {protocol}, expected {PROTOCOL}")
        self.config = config

    async def _upload(self, config: RunnerConfig) -> None:
        """Upload the runner, and the files of the image, unless the machine has them."""
        files = {} if self._uploaded else {inside.RUNNER: source().encode()}
        before = self.config.world if self.config is not None else None
        if config.world is not None and config.world.archive and config.world is not before:
            files[inside.ARCHIVE] = config.world.archive
        async with deadline(f"upload to {self.id}", self._timeout_s):
            for path, data in files.items():
                await self._sdk.files.write(path, data, user="root", use_octet_stream=True)
        self._uploaded = True

    async def _end_runner(self) -> None:
        """Kill the runner, if there is one: the kernel ends its processes and its files with it.

        Raises:
            SandboxLost: the machine is dead, or does not confirm it.
        """
        if self.dead:
            raise SandboxLost(f"{self.id}: {self.dead}")
        if self.config is None:
            return
        for task in self._own:
            task.cancel()
        await asyncio.wait(self._own)
        self._lines.clear()
        self._rest.clear()
        async with deadline(f"kill the runner in {self.id}", self._timeout_s):
            await self._sdk.commands.kill(self._pid)

    def send(self, line: bytes) -> None:
        """Queue one request, which ends with a newline; requests keep their order."""
        if self.dead:
            raise SandboxLost(f"{self.id}: {self.dead}")
        self._lines.append(line)
        self._more.set()

    def drop(self, why: str, *, kill_runner: bool = False) -> None:
        """Mark the machine as unusable; kill the runner by its pid if it may still be at work."""
        if self.dead:
            return
        self.dead = why
        if kill_runner:
            self._tasks.create_task(self._kill_runner(), name=f"kill the runner in {self.id}")
        for task in self._own:
            task.cancel()
        self.on_end(why)

    # ------------------------------------------------------------------ inside
    async def _kill_runner(self) -> None:
        """Kill the runner and all its processes; if that fails, the end of the machine does it."""
        try:
            async with deadline(f"kill the runner in {self.id}", self._timeout_s):
                await self._sdk.commands.kill(self._pid)
        except SandboxError as error:
            log.warning("%s", error)

    def _receive(self, text: str) -> None:
        first, *lines = text.split("\n")
        self._rest.append(first)
        for start in lines:
            line = "".join(self._rest)
            self._rest = [start]
            self.on_line(line)

    async def _watch(self, handle: AsyncCommandHandle[None]) -> None:
        """Wait until the runner, or the connection to it, ends."""
        try:
            await handle.wait()
            why = "its runner has ended"
        except CommandExitException as error:
            errors = "".join(self._stderr).strip()[-STDERR_CHARS:]
            why = f"its runner has ended with exit code {error.exit_code} {errors}".strip()
            self._exited = True
        except asyncio.CancelledError:
            with contextlib.suppress(*FAILURES):
                async with asyncio.timeout(DISCONNECT_S):
                    await handle.disconnect()
            raise
        except Exception as error:  # the SDK also raises plain exceptions
            why = f"the connection to its runner ended: {type(error).__name__}: {error}"
        self.drop(why)

    async def _feed(self) -> None:
        """Send queued lines in pieces, one call at a time: overlapping calls may be reordered."""
        while not self.dead:
            await self._more.wait()
            self._more.clear()
            while self._lines and not self.dead:
                data = b"".join(self._lines)
                self._lines.clear()
                try:
                    for start in range(0, len(data), PIECE_BYTES):
                        async with deadline(f"input to {self.id}", self._timeout_s):
                            await self._sdk.commands.send_stdin(
                                self._pid, data[start : start + PIECE_BYTES]
                            )
                except SandboxError as error:
                    self.drop(str(error))
                    return
