"""The processes of a vLLM server end with it."""

from __future__ import annotations

import os
import signal
import time


def test_a_killed_server_leaves_no_process(start_vllm):
    server = start_vllm()
    assert len(server.processes()) >= 2
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    deadline = time.monotonic() + 5
    while server.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.processes() == []
