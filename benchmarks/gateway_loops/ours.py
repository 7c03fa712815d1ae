"""Our gateway in a process of its own, before one engine.

    python -m benchmarks.gateway_loops.ours ENGINE_URL MAX_TOKENS

It prints its URL; then, for each number read from standard input, it closes the previous sessions,
opens that many new ones, and prints their keys, its CPU seconds and its memory.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from agentgym_rl.config import GatewayConfig
from agentgym_rl.engines import HttpEngine, Router
from agentgym_rl.gateway import ChatFormat, Gateway, Session, SessionSampling
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import paced_collections

_CONTEXT = 1 << 17


async def main(engine_url: str, max_tokens: int) -> None:
    """Serve until standard input ends."""
    router = Router(interrupt="keep", wait_s=10.0)
    engine = HttpEngine(engine_url)
    router.add("engine", engine, version=0)
    gateway = Gateway(
        router,
        ChatFormat.load(BUNDLED),
        config=GatewayConfig(),
        model_name="m",
        max_model_len=_CONTEXT,
    )
    sampling = SessionSampling(max_tokens=max_tokens, temperature=1.0)
    async with gateway.serve() as url:
        print(json.dumps({"url": url}), flush=True)
        sessions: list[Session] = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            records = [gateway.close_session(session) for session in sessions]
            errors = sorted({record.infra_error for record in records} - {""})
            sessions = [
                gateway.open_session(sampling=sampling, session_id=f"s{number}")
                for number in range(int(line))
            ]
            answer: dict[str, Any] = {"keys": [session.key for session in sessions]}
            answer |= {"errors": errors, "rows": sum(len(record.rows) for record in records)}
            del records
            print(json.dumps(answer | _used()), flush=True)
    await engine.close()


def _used() -> dict[str, float]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    rss_mb = pages * resource.getpagesize() / 2**20
    return {"cpu_s": time.process_time(), "rss_mb": round(rss_mb, 1)}


if __name__ == "__main__":
    with paced_collections():
        uvloop.run(main(sys.argv[1], int(sys.argv[2])))  # as `arl` does
