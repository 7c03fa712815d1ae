"""The comparison of rows, token for token, with the input and output of a real engine.

Episodes of several turns under four chat templates are played, with a tiny model that writes
thoughts, tool calls, wrong calls, and odd characters; with short limits and stop strings, several
samples, helpers, edits, retries and clients that hang up; while the weights change, several times a
second and in the middle of turns, in each interrupt mode. Then each row is compared with the
engine's own record: the journal of the embedded engine, or the bytes that a relay in front of vLLM
copied.

ARL_EXACT_EPISODES episodes (default 400) on each; vLLM is skipped, by name, unless
`make test-vllm` has installed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from agentgym_rl.gateway import ChatFormat
from agentgym_rl.storage import WeightsFolder

from ._common import (
    VLLM_PYTHON,
    engine_server,
    hardware,
    model_config,
    no_peer,
    say,
    versions,
)
from ._toy import sized
from .exactness_loops import babbler, views
from .exactness_loops.compare import FIELDS
from .exactness_loops.play import Engine, Played, play
from .exactness_loops.relay import Relay
from .exactness_loops.summary import summarize
from .exactness_loops.templates import chats

EPISODES = int(os.environ.get("ARL_EXACT_EPISODES", sized("400", toy="16")))
NUM_POLICIES = 8
GOAL = {**dict.fromkeys(FIELDS, 0), "episodes": 2000}


def run() -> dict[str, Any]:
    """Run the benchmark; return the JSON object of `arl bench exactness --json`."""
    templates = chats(babbler.tokenizer())
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as name:
        folder = Path(name)
        weights = babbler.make(
            folder, templates, steps=babbler.STEPS, versions=NUM_POLICIES, seed=1
        )
        say("the model has learned to babble")
        rows = [
            measure(engine, folder, templates, weights, episodes=EPISODES, seed=1)
            for engine in ("embedded", *(["vllm"] if VLLM_PYTHON else []))
        ]
    return {
        "name": "exactness",
        "hardware": hardware("1 thread a process"),
        "versions": versions(),
        "rows": rows,
        "skipped": [] if VLLM_PYTHON else [no_peer("vllm")],
        "goal": GOAL,
        "met": all(row["mismatches"] == {} and row["episodes"] >= GOAL["episodes"] for row in rows),
    }


def measure(
    engine: str,
    folder: Path,
    templates: Mapping[str, ChatFormat],
    weights: Sequence[Mapping[str, Tensor]],
    *,
    episodes: int,
    seed: int,
) -> dict[str, Any]:
    """Play on one engine ("embedded" or "vllm") that serves the model in `folder`."""
    is_vllm = engine == "vllm"
    overrides = [("engine.type", engine), ("engine.max_model_len", babbler.MAX_MODEL_LEN)]
    overrides += [("engine.python", VLLM_PYTHON)] if is_vllm else []
    journal = folder / f"journal-{engine}-{episodes}.jsonl"
    with (
        engine_server(
            model_config(folder, overrides), *([] if is_vllm else [f"--journal={journal}"])
        ) as url,
        WeightsFolder(f"bench-exactness-{engine}-{os.getpid()}", need_bytes=2**28) as shared,
    ):
        start = time.monotonic()
        relay = Relay(url)

        async def played() -> tuple[list[Played], Counter[str]]:
            async with contextlib.AsyncExitStack() as stack:
                at = await stack.enter_async_context(relay.serving()) if is_vllm else url
                where = Engine(url, at, is_vllm)
                return await play(where, templates, weights, shared, episodes=episodes, seed=seed)

        found, counters = asyncio.run(played())
        took_s = time.monotonic() - start
    seen = views.relayed(relay.exchanges) if is_vllm else views.journaled(journal)
    say(f"{engine}: {len(found)} episodes in {took_s:.0f} s")
    row = summarize(found, views.turns(seen))
    return {"engine": engine, **row, "router": dict(counters), "seconds": round(took_s)}
