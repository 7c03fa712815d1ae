"""The e2b backend on E2B itself: runs where E2B_API_KEY is set, and costs a few cents."""

from __future__ import annotations

import asyncio
import os

import pytest
from arl_sandboxes.e2b import E2BBackend

from agentgym_rl.gym import Limits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("E2B_API_KEY"), reason="E2B_API_KEY is not set"),
]
SLEEP = "import time; time.sleep(60)"


def test_live():
    async def run():
        async with asyncio.timeout(120), E2BBackend(sandboxes=1) as backend:
            sandbox = await backend.create()
            async with sandbox:
                session = await sandbox.open_session()
                await session.run("x = 41")
                fork = await session.fork()
                net = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
                return (
                    (await sandbox.exec(["cat"], stdin=b"live", collect=["."])).stdout,
                    (await fork.run("x + 1")).stdout,
                    (await sandbox.run_python(net)).status,
                    (await sandbox.run_python(SLEEP, limits=Limits(wall_s=1))).status,
                )

    assert asyncio.run(run()) == (b"live", b"42\n", "error", "timeout")
