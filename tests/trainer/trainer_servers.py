"""A small real HTTP server that plays controller and engine for a trainer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentgym_rl.core.batch import BatchShard, StepReport

TOKEN = "secret"


class FakeController(ThreadingHTTPServer):
    """Hands out the given shards, then 410; `answer` may reply to /batch in their stead.

    It names itself as the engine "e" (`engines`) of every publication, after a 204.
    """

    daemon_threads = False

    def __init__(self, shards: list[BatchShard], answer: Callable[[int], tuple[int, bytes]] | None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.shards, self.custom = shards, answer
        self.asked = 0
        self.ready: list[int] = []
        self.reports: list[StepReport] = []
        self.engines = {"e": self.url}
        self.begun: list[int] = []
        self.ended: list[dict[str, Any]] = []
        self.label = "default"
        self.updates: list[str] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.warned: list[str] = []
        self.failures = 0
        """Times that a swap shall fail yet."""

    def begin(self, version: int) -> tuple[int, bytes]:
        self.begun.append(version)
        if len(self.begun) % 2:
            return 204, b""
        return 200, json.dumps({"engines": self.engines}).encode()

    def finish(self, label: str) -> tuple[int, bytes]:
        if self.failures:
            self.failures -= 1
            return 500, b"out of memory"
        self.label = label
        return 200, b""

    def batch(self, step: int) -> tuple[int, bytes]:
        self.asked += 1
        if self.custom:
            return self.custom(self.asked)
        if self.asked % 2:
            return 204, b""
        return (200, self.shards[step].pack()) if step < len(self.shards) else (410, b"ending")


ROUTES = (
    *("/ready", "/report", "/current", "/checkpoint", "/failed", "/warn"),
    *("/publish/begin", "/publish/end"),
)


class Handler(BaseHTTPRequestHandler):
    server: FakeController

    def do_GET(self) -> None:
        if self.path == "/weight_info":
            return self.reply(200, json.dumps({"weight_version": self.server.label}).encode())
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.reply(401, b"unknown token")
        step = int(self.path.removeprefix("/batch/").partition("?")[0])
        return self.reply(*self.server.batch(step))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        ours = self.path in ROUTES
        if ours and self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.reply(401, b"unknown token")
        if self.path == "/report":
            self.server.reports.append(StepReport.unpack(body))
            return self.reply(200, json.dumps({"reward/mean": 0.5, "overlap": None}).encode())
        return self.reply(*self.post(json.loads(body) if body else {}))

    def post(self, content: Any) -> tuple[int, bytes]:
        match self.path:
            case "/ready":
                self.server.ready.append(content["rank"])
            case "/failed":
                self.server.failed.append(content["why"])
            case "/warn":
                self.server.warned.append(content["text"])
            case "/checkpoint":
                self.server.checkpoints.append(content)
            case "/publish/begin":
                return self.server.begin(content["version"])
            case "/publish/end":
                self.server.ended.append(content)
            case "/update_weights":
                self.server.updates.append(content["update_info"].get("path", "discard"))
            case "/finish_weight_update":
                return self.server.finish(content["weight_version"])
            case "/update_weight_version":
                self.server.label = content["new_version"]
        return 200, b""

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def controller(
    shards: list[BatchShard] | None = None,
    answer: Callable[[int], tuple[int, bytes]] | None = None,
) -> Iterator[FakeController]:
    with FakeController(shards or [], answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(timeout=5)
