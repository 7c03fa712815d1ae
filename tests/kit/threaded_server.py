"""A fake HTTP server for code that blocks; the answers may block too, each in its own thread."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class ThreadedServer(ThreadingHTTPServer, ABC):
    """A server at a free port that answers with JSON, and keeps a log of requests."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.log: list[tuple[str, Any]] = []
        """The path and body of each request, in order."""

    @abstractmethod
    def respond(self, path: str, body: Any) -> tuple[int, Any] | None:
        """Return the status and content of an answer; None to hang up without one."""

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Serve while the context is open."""
        thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        with self:
            thread.start()
            try:
                yield self
            finally:
                self.shutdown()
                thread.join(timeout=5)


class _Handler(BaseHTTPRequestHandler):
    server: ThreadedServer

    def do_GET(self) -> None:
        self._do(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._do(json.loads(body) if body else None)

    def _do(self, body: Any) -> None:
        answer = self.server.respond(self.path, body)
        if answer is None:
            return
        status, content = answer
        reply = json.dumps(content).encode()
        with suppress(ConnectionError):  # the client did not wait
            self.send_response(status)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None:
        return
