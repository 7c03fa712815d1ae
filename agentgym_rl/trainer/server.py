"""The server of a rank's commands, over HTTP: a thread answers the requests, the main thread does
the work.

    POST /train       a BatchShard                          a StepReport
    POST /publish     {"version", "engines", "timeout_s"}   a Published (rank 0)
    POST /swap        [engine]                              a Published (rank 0)
    POST /checkpoint  {"step"}                              [(phase, start, end)]
    POST /complete    {"metrics"}                           the checkpoint's folder, or "" (rank 0)
    POST /export, /stop
    POST /here        which does nothing: the controller can reach this rank

Bodies are msgpack, and an answer is `controller.ranks.answer`. It begins at once: while the command
runs, a byte every few seconds shows whether the rank has finished a pass since the last one.
"""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agentgym_rl.controller import MOVED, STILL, Metrics, answer, refusal
from agentgym_rl.core import TrainerError
from agentgym_rl.runtime import MSGPACK, Api, in_thread, is_secret, read_body, serving
from agentgym_rl.runtime.http_client import call
from agentgym_rl.runtime.http_server import bearer
from agentgym_rl.storage.run_folder import build
from agentgym_rl.weights import own_address

_CALL_TIMEOUT_S = 90.0
"""The longest wait for an answer of the controller."""
_BODY_BYTES = 1 << 36
"""The longest body, the shard of a batch."""
_BEAT_S = 3.0
_IDLE_S = 5.0
"""The time without a command after which a rank checks that it is still needed."""

Do = Callable[[bytes], object]
"""A command: a function of its body, which returns what msgpack can encode, or the bytes of it."""


class Final(TrainerError):
    """The failure of a command that would fail on other ranks, too."""


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    body: bytes
    done: Future[bytes] = field(default_factory=Future[bytes])


class Controller:
    """The run's controller at `url`, which recognizes its ranks by the secret `token`."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token

    def ready(self, rank: int, url: str, *, version: int | None) -> None:
        """Report that a rank has loaded its model, and serves commands at `url`; `version`: the one
        that must be published first, if any.

        Raises:
            TrainerError: other ranks have replaced it, or the controller does not answer.
        """
        self._post("/ready", {"rank": rank, "url": url, "version": version, "build": build()})

    def check_current(self) -> None:
        """Check that these ranks are still the run's current ranks.

        Raises:
            TrainerError: other ranks have replaced them, or the controller does not answer.
        """
        self._post("/current", {})

    def _post(self, path: str, content: object) -> None:
        what = f"controller {self.url}: POST {path}"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        body = json.dumps(content).encode()
        try:
            status, reply = call(
                *(self.url, "POST", path), body=body, headers=headers, timeout_s=_CALL_TIMEOUT_S
            )
        except OSError as error:
            raise TrainerError(
                f"{what}: {type(error).__name__}: {error} (the run has ended, or this host cannot "
                "reach it)"
            ) from error
        if status != 200:
            raise TrainerError(f"{what}: HTTP {status}: {reply[:500].decode(errors='replace')}")


class RankServer(Api):
    """The server of one rank, for the controller alone. `served` opens it; `run` does the commands
    in the calling thread."""

    def __init__(
        self,
        controller: Controller,
        *,
        passes: Callable[[], float],
        complete: Callable[[Metrics], Future[Path | None]],
    ) -> None:
        """Set up the server. `passes`: a number that grows with each pass of a command. `complete`
        begins the one command that is done beside the others."""
        names = ("train", "publish", "swap", "checkpoint", "export", "stop")
        routes = {f"POST /{name}": self._queued for name in names}
        routes |= {"POST /complete": self._beside, "POST /here": self._here}
        super().__init__(routes, statuses={ValueError: 400})
        self.idle_since_s = time.monotonic()
        """The time at which the last command ended."""
        self._controller, self._passes, self._complete = controller, passes, complete
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve in a thread, for a context; yield the URL."""
        found: Future[str] = Future()
        loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

        async def serve() -> None:
            host, over = own_address([self._controller.url]), asyncio.Event()
            async with serving(self, host=host, port=0) as url:
                loops.append((asyncio.get_running_loop(), over))
                found.set_result(url)
                await over.wait()

        ended = in_thread(lambda: asyncio.run(serve()), name="commands")
        ended.add_done_callback(lambda it: found.done() or found.set_exception(it.exception()))
        try:
            yield found.result()
        finally:
            for loop, over in loops:
                loop.call_soon_threadsafe(over.set)
            ended.exception()  # wait until the last answer is sent

    def run(self, commands: Mapping[str, Do]) -> None:
        """Do commands by name, one after the other, until "stop".

        Raises:
            TrainerError: the controller is gone, or has replaced this rank. All errors of commands,
                after they were reported.
        """
        while True:
            try:
                command = self._commands.get(timeout=_IDLE_S)
            except queue.Empty:
                self._controller.check_current()
                continue
            if command.name == "stop":
                return command.done.set_result(answer())
            try:
                found = commands[command.name](command.body)
            except BaseException as error:
                command.done.set_result(refusal(error, is_final=isinstance(error, Final)))
                raise
            self.idle_since_s = time.monotonic()
            command.done.set_result(answer(found))

    # ------------------------------------------------------------------ requests
    def check(self, request: Request) -> None:
        if not is_secret(bearer(request), self._controller.token):
            raise HTTPException(401, "unknown token")

    async def _here(self, request: Request) -> Response:
        return Response(answer(), media_type=MSGPACK)

    async def _queued(self, request: Request) -> Response:
        body = await read_body(request.receive, limit_bytes=_BODY_BYTES)
        command = _Command(request.url.path.removeprefix("/"), body)
        self._commands.put(command)
        return StreamingResponse(self._answered(command.done), media_type=MSGPACK)

    async def _answered(self, done: Future[bytes]) -> AsyncIterator[bytes]:
        waiting, before = asyncio.wrap_future(done), self._passes()
        while not waiting.done():
            await asyncio.wait([waiting], timeout=_BEAT_S)
            if not waiting.done():
                now = self._passes()
                yield STILL if now == before else MOVED
                before = now
        yield waiting.result()

    async def _beside(self, request: Request) -> Response:
        body = await read_body(request.receive, limit_bytes=_BODY_BYTES)
        metrics = msgspec.msgpack.decode(body)["metrics"]
        try:
            folder = await asyncio.wrap_future(self._complete(metrics))
            found = answer(str(folder or ""))
        except Exception as error:
            found = refusal(error)
        return Response(found, media_type=MSGPACK)
