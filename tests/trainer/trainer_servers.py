"""The run of a rank in this process, in a thread: its loop without a buffer, and an engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentgym_rl.controller import HttpRanks, RanksApi, RanksFailed, publish
from agentgym_rl.core import BatchShard, Published, StepReport, TrainerError
from agentgym_rl.runtime import serving

TOKEN = "secret"


class FakeRun(ThreadingHTTPServer):
    """Gives its rank the shards; then the export, unless more steps were to come (`ends`).

    The server itself is the engine "e" of every publication, which is there at the second look.
    """

    daemon_threads = False

    def __init__(self, shards: list[BatchShard], ends: bool, on_ready: Callable[[], None]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.shards, self.ends, self.on_ready = shards, ends, on_ready
        self.ready: list[int] = []
        self.reports: list[StepReport] = []
        self.published: list[Published] = []
        self.engines = {"e": f"http://127.0.0.1:{self.server_port}"}
        self.begun: list[int] = []
        self.ended: list[dict[str, Any]] = []
        self.label = "default"
        self.updates: list[str] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.warned: list[str] = []
        self.failures = 0
        """Times that a swap shall fail yet."""
        self.url = ""
        self._there = threading.Event()

    def finish(self, label: str) -> tuple[int, bytes]:
        if self.failures:
            self.failures -= 1
            return 500, b"out of memory"
        self.label = label
        return 200, b""

    # ------------------------------------------------------------ the loop
    def play(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._play())

    async def _play(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        ranks = HttpRanks(1)
        ranks.token = TOKEN
        async with serving(RanksApi(ranks), host="127.0.0.1", port=0) as self.url:
            self._there.set()
            first = await ranks.begun()
            self.ready.append(0)
            self.on_ready()
            try:
                await self._train(ranks, first)
            except RanksFailed:
                pass
            except TrainerError as error:
                self.failed.append(str(error))
            finally:
                await ranks.close()

    async def _train(self, ranks: HttpRanks, first: int | None) -> None:
        if first is not None:
            await self._publish(ranks, first)
        for shard in self.shards:
            report = await ranks.train(shard.step, [shard])
            self.warned += report.warnings
            await self._publish(ranks, report.version)
            is_last = self.ends and shard is self.shards[-1]
            if report.version % 2 == 0 or is_last:
                await ranks.checkpoint(report.version)
            self.reports.append(report)
            if report.version % 2 == 0 or is_last:
                folder = await ranks.complete({"reward/mean": 0.5, "overlap": None})
                self.checkpoints.append({"step": report.version, "folder": str(folder)})
        if self.shards and self.ends:
            await ranks.export()
        if self.shards:
            await ranks.stop()

    async def _publish(self, ranks: HttpRanks, version: int) -> None:
        give, its = partial(ranks.publish, version), {"wait_s": 30, "timeout_s": 30}
        self.published.append(await publish(self, version, give, ranks.swap, **its))

    async def begin_swap(self, version: int, lives) -> None:
        assert self.begun[-1] == version

    def end_swap(self, version: int, *, served, failed) -> None:
        assert self.begun[-1] == version

    async def begin_publication(self, version: int) -> dict[str, str]:
        self.begun.append(version)
        return self.engines if len(self.begun) % 2 == 0 else {}

    async def end_publication(self, version, *, served, failed) -> None:
        self.ended.append({"version": version, "served": list(served), "failed": dict(failed)})

    def cancel(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._task.cancel)


class Handler(BaseHTTPRequestHandler):
    """The engine."""

    server: FakeRun

    def do_GET(self) -> None:
        if self.path == "/weight_info":
            return self.reply(200, json.dumps({"weight_version": self.server.label}).encode())
        return self.reply(404, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return self.reply(*self.post(json.loads(body) if body else {}))

    def post(self, content: Any) -> tuple[int, bytes]:
        match self.path:
            case "/update_weights":
                self.server.updates.append(content["update_info"].get("path", "discard"))
            case "/finish_weight_update":
                return self.server.finish(content["weight_version"])
            case "/update_weight_version":
                self.server.label = content["new_version"]
        return 200, b""

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def controller(
    shards: list[BatchShard] | None = None,
    *,
    ends: bool = True,
    on_ready: Callable[[], None] = lambda: None,
) -> Iterator[FakeRun]:
    with FakeRun(shards or [], ends, on_ready) as server:
        threads = [
            threading.Thread(target=server.serve_forever, args=(0.01,)),
            threading.Thread(target=server.play),
        ]
        for thread in threads:
            thread.start()
        assert server._there.wait(30)
        try:
            yield server
        finally:
            if server.reports or server.failed:
                threads[1].join(timeout=30)  # the last answers are on their way
            server.cancel()
            server.shutdown()
            for thread in threads:
                thread.join(timeout=30)
