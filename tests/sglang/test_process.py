"""The processes of an SGLang server end with it, at any moment of its life."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.kit.cases import cases

pytestmark = pytest.mark.timeout(1800)


def test_a_killed_server_leaves_no_process(start_sglang):
    server = start_sglang()
    assert len(server.processes()) >= 3
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    assert server.wait_gone(timeout_s=60) == []


@cases("children", [1, 3])
def test_a_server_that_is_killed_while_it_starts_leaves_no_process(start_sglang, children):
    """Its children are still importing, and have not asked the kernel for anything yet."""
    server = start_sglang(waits=False)
    deadline = time.monotonic() + 300
    while len(server.processes()) <= children and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(server.processes()) > children
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    assert server.wait_gone(timeout_s=60) == []


def test_a_killed_child_ends_the_server(start_sglang):
    server = start_sglang()
    named = {
        Path(f"/proc/{pid}/cmdline").read_text().strip("\0"): pid for pid in server.processes()
    }
    os.kill(next(pid for name, pid in named.items() if "scheduler" in name), signal.SIGKILL)
    server.process.wait(timeout=60)
    assert server.wait_gone(timeout_s=60) == []
