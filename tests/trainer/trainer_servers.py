"""A small real HTTP server that plays controller and engine for a trainer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agentgym_rl.batch import BatchShard, StepReport

TOKEN = "secret"


class FakeController(ThreadingHTTPServer):
    """Hands out the given shards, then 410; `answer` may reply to /batch in their stead."""

    daemon_threads = False

    def __init__(self, shards: list[BatchShard], answer: Callable[[int], tuple[int, bytes]] | None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.shards, self.custom = shards, answer
        self.asked = 0
        self.ready: list[int] = []
        self.reports: list[StepReport] = []
        self.label = "default"
        self.updates: list[str] = []

    def batch(self, step: int) -> tuple[int, bytes]:
        self.asked += 1
        if self.custom:
            return self.custom(self.asked)
        if self.asked % 2:
            return 204, b""
        return (200, self.shards[step].pack()) if step < len(self.shards) else (410, b"ending")


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
        if self.path == "/ready":
            self.server.ready.append(json.loads(body)["rank"])
        elif self.path == "/report":
            self.server.reports.append(StepReport.unpack(body))
        elif self.path == "/update_weights":
            self.server.updates.append(json.loads(body)["update_info"]["path"])
        elif self.path == "/finish_weight_update":
            self.server.label = json.loads(body)["weight_version"]
        self.reply(200, b"")

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
