"""The processes of a vLLM server end with it."""

from __future__ import annotations

import os
import signal


def test_a_killed_server_leaves_no_process(start_vllm):
    server = start_vllm()
    assert len(server.processes()) >= 2
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    assert server.wait_gone(timeout_s=60) == []
