"""The publisher against real HTTP servers that keep a log of what they are asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentgym_rl.errors import WeightsError
from agentgym_rl.weights.publish import Publisher

FILE = Path("/somewhere/v3.safetensors")


class FakeEngine(ThreadingHTTPServer):
    """Serves the update routes; `fail` answers 500 on one path, `hang` stalls another."""

    def __init__(self, fail: str = "", hang: str = "", lie: bool = False):
        super().__init__(("127.0.0.1", 0), Handler)
        self.log: list[tuple[str, object]] = []
        self.label = "default"
        self.fail, self.hang, self.lie = fail, hang, lie
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.log]


class Handler(BaseHTTPRequestHandler):
    server: FakeEngine

    def do_GET(self) -> None:
        self.answer(200, {"weight_version": self.server.label})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = json.loads(body) if body else None
        self.server.log.append((self.path, content))
        if self.server.hang and self.path.startswith(self.server.hang):
            time.sleep(1.0)
        if self.server.fail and self.path.startswith(self.server.fail):
            return self.answer(500, {"error": "no such file"})
        if self.path == "/finish_weight_update" and content and not self.server.lie:
            self.server.label = content["weight_version"]
        return self.answer(200, {})

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def engine(**options) -> Iterator[FakeEngine]:
    with FakeEngine(**options) as server:
        server.daemon_threads = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(timeout=5)


def test_the_routes_in_their_order_staged_before_the_pause():
    with engine() as one, engine() as two:
        publisher = Publisher([one.url, two.url], timeout_s=5)
        first = publisher.publish(FILE, 3)
        publisher.publish(FILE, 4)
    update = [
        ("/start_weight_update", {}),
        ("/update_weights", {"update_info": {"path": str(FILE)}}),
        ("/pause?mode=keep&clear_cache=false", None),
        ("/finish_weight_update", {"weight_version": "0.3"}),
        ("/resume", None),
    ]
    for server in (one, two):
        assert server.log[0][0] == "/init_weight_transfer_engine"
        assert server.log[1:6] == update
        assert server.log[9] == ("/finish_weight_update", {"weight_version": "0.4"})
        assert len(server.log) == 11
    assert 0 < first.pause_s < first.seconds < 5


def test_recompute_clears_the_cache_and_labels_carry_the_incarnation():
    with engine() as server:
        Publisher([server.url], interrupt="recompute", timeout_s=5, incarnation=2).publish(FILE, 3)
    assert "/pause?mode=keep&clear_cache=true" in server.paths
    assert server.label == "2.3"


def test_an_engine_that_cannot_load_is_named_and_never_paused():
    with engine(fail="/update_weights") as server:
        with pytest.raises(
            WeightsError, match=r"/update_weights: HTTP 500: .*no such file"
        ) as error:
            Publisher([server.url], timeout_s=5).publish(FILE, 3)
        assert server.url in str(error.value)
    assert not any(path.startswith("/pause") for path in server.paths)


@pytest.mark.parametrize("step", ["/pause", "/finish_weight_update"])
def test_a_failure_in_the_pause_resumes_the_engine(step):
    with engine(fail=step) as server, pytest.raises(WeightsError, match=f"{step}.*HTTP 500"):
        Publisher([server.url], timeout_s=5).publish(FILE, 3)
    assert server.paths[-1] == "/resume"


def test_an_engine_that_hangs_costs_no_more_than_the_deadline():
    with engine(hang="/finish_weight_update") as server:
        start = time.monotonic()
        with pytest.raises(WeightsError, match="/finish_weight_update: no answer in"):
            Publisher([server.url], timeout_s=0.3).publish(FILE, 3)
        assert time.monotonic() - start < 0.9
    assert server.paths[-1] == "/resume"


def test_an_engine_that_serves_another_version_is_found_out():
    with engine(lie=True) as server, pytest.raises(WeightsError, match=r"default.*0\.3"):
        Publisher([server.url], timeout_s=5).publish(FILE, 3)


def test_a_dead_engine_is_named():
    with engine() as server:
        url = server.url
    with pytest.raises(WeightsError, match=f"{url}.*ConnectionRefused"):
        Publisher([url], timeout_s=5).publish(FILE, 3)
