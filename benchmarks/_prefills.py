"""The reuse of KV during publications: sessions of many turns on several engines, while versions
are published one after the other.
Each turn's prompt is the session's history and some new tokens, so that an engine computes only the
new ones, except after a swap, when it computes the history again. Staging takes as long as one turn
of every session, as if the model were large: engines sample meanwhile. `publication` has the
windows of earlier trees for comparison: from before staging to the end of the last swap, each
request on any engine has a salt of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from arl_vllm.client import VllmEngine
from safetensors.torch import load_file
from torch import Tensor

from agentgym_rl.core import SamplingParams
from agentgym_rl.engines import EngineClient, HttpEngine, Router
from agentgym_rl.storage import WeightsFolder
from agentgym_rl.weights import Publisher, SharedFiles, recognized
from agentgym_rl.weights.publish import Published

from ._common import VLLM_PYTHON, engine_server, model_config, qwen3, say
from ._toy import sized

SESSIONS, TURNS, PUBLICATIONS = sized((64, 20, 10), toy=(4, 6, 2))
NUM_ENGINES = sized((2, 4), toy=(2,))
Windows = Literal["publication", "swap"]
_NEW, _REPLY = 72, 24
"""The new tokens of a turn's prompt, and of its reply: together a multiple of vLLM's blocks."""
_BLOCK = 32
"""The smallest block that the kernels of vLLM on CPUs take."""
_TIMEOUT_S = 1200.0
GOAL = (
    "prefilled tokens of sessions are at most 1.1 times their new tokens, and one history for each "
    "session and version"
)


def measured(
    engines: Sequence[str], windows: Sequence[Windows] = ("publication", "swap")
) -> list[dict[str, Any]]:
    """Return a row for each kind of engines, number of them, and kind of windows."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        folder = Path(scratch) / "model"
        qwen3(folder, hidden=128, layers=3)
        for engine in engines:
            overrides: list[tuple[str, Any]] = [("engine.type", engine)]
            overrides += [("engine.max_model_len", 2048), ("engine.start_timeout_s", 600.0)]
            if engine == "vllm":
                overrides.append(("engine.python", VLLM_PYTHON))
                overrides.append(("engine.flags", [f"--block-size={_BLOCK}"]))
            config = model_config(folder, overrides)
            for count, window in itertools.product(NUM_ENGINES, windows):
                with contextlib.ExitStack() as stack:
                    urls = [stack.enter_context(engine_server(config)) for _ in range(count)]
                    say(f"{count} × {engine}, {SESSIONS} sessions, salts by {window}")
                    case = _Case(engine, urls, window, folder)
                    rows.append(asyncio.run(case.play()))
                    say(f"  {rows[-1]}")
    return rows


@dataclass
class _Case:
    engine: str
    urls: Sequence[str]
    windows: Windows
    model_dir: Path
    num_turns: int = 0
    again: int = 0
    """The tokens of histories that a session computes again, once for each version."""
    done: list[Published] = field(default_factory=list[Published])
    served_s: list[float] = field(default_factory=list[float])
    """The times from the end of staging to the last engine's new version."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self) -> dict[str, Any]:
        """Play all sessions while versions are published; return the row."""
        is_vllm = self.engine == "vllm"
        router = Router(interrupt="keep", wait_s=_TIMEOUT_S)
        clients: list[EngineClient] = []
        for number, url in enumerate(self.urls):
            client: EngineClient = HttpEngine(url)
            if is_vllm:
                client = VllmEngine(url, send_seed=False, polls_staging=True)
            await client.name_version(0)
            router.add(f"engine-{number}", client, version=0)
            clients.append(client)
        before = await _totals(clients)
        start, cpu = time.monotonic(), time.process_time()
        try:
            async with asyncio.timeout(_TIMEOUT_S), asyncio.TaskGroup() as tasks:
                for number in range(SESSIONS):
                    tasks.create_task(self._session(router, number))
                tasks.create_task(self._publish_all(router, is_vllm))
            seconds = time.monotonic() - start
            after = await _totals(clients)
        finally:
            for client in clients:
                await client.close()
        new = SESSIONS * TURNS * (_NEW + _REPLY)
        prefilled = after["prompts"] - after["reused"] - before["prompts"] + before["reused"]
        paused_s = sum(end - begin for it in self.done for begin, end in it.pauses.values())
        return {
            "system": f"agentgym-rl {self.engine}",
            "salts": self.windows,
            "engines": len(self.urls),
            "sessions": SESSIONS,
            "turns": self.num_turns,
            "publications": len(self.done),
            "prompt_tokens": round(after["prompts"] - before["prompts"]),
            "prefilled_tokens": round(prefilled),
            "new_tokens": new,
            "histories_again": self.again,
            "share_of_allowed": round(prefilled / (1.1 * new + self.again), 2),
            "paused_s": round(paused_s, 3),
            "served_after_staging_s": round(sum(self.served_s) / max(1, len(self.served_s)), 3),
            "seconds": round(seconds, 1),
            "client_cpu_s": round(time.process_time() - cpu, 1),
        }

    async def _session(self, router: Router, number: int) -> None:
        draw = random.Random(number)
        history: list[int] = []
        version = 0
        for turn in range(TURNS):
            prompt = [*history, *(draw.randrange(5, 500) for _ in range(_NEW))]
            sampling = SamplingParams(max_tokens=_REPLY)
            name = f"{self.windows}-{number}"
            deltas = [
                delta
                async for delta in router.generate(
                    prompt, sampling, request_id=f"{name}-{turn}", session_id=name
                )
            ]
            reply = [id for delta in deltas for id in delta.token_ids]
            assert len(reply) == _REPLY
            admitted = deltas[0].admitted_version
            if admitted != version:
                self.again, version = self.again + len(history), admitted
            history = [*prompt, *reply]
            self.num_turns += 1
            self.moved.set()

    async def _until(self, num_turns: int) -> None:
        while self.num_turns < min(num_turns, SESSIONS * TURNS):
            self.moved.clear()
            await self.moved.wait()

    async def _publish_all(self, router: Router, is_vllm: bool) -> None:
        base = load_file(self.model_dir / "model.safetensors")
        size = sum(tensor.nbytes for tensor in base.values())
        every = SESSIONS * TURNS // (PUBLICATIONS + 1)
        with WeightsFolder(f"bench-reuse-{self.engine}", need_bytes=4 * size) as folder:
            publisher = Publisher(
                recognize=recognized,
                transport=SharedFiles(folder, model_dir=self.model_dir),
                interrupt="keep",
                timeout_s=_TIMEOUT_S,
                polls_staging=is_vllm,
            )
            with contextlib.closing(publisher):
                for version in range(1, PUBLICATIONS + 1):
                    await self._until(version * every)
                    await self._publish(router, publisher, version, base)

    async def _publish(
        self, router: Router, publisher: Publisher, version: int, base: Mapping[str, Tensor]
    ) -> None:
        tensors = {name: tensor + 1e-4 * version for name, tensor in base.items()}
        await asyncio.to_thread(publisher.prepare, version, tensors)
        if self.windows == "publication":
            router.begin_update(version)
        urls = {f"engine-{number}": url for number, url in enumerate(self.urls)}
        done = await asyncio.to_thread(publisher.stage, urls, version)
        await self._until(self.num_turns + SESSIONS)  # a large version would still be staged
        start = time.monotonic()
        for wave in done.waves:
            if self.windows == "swap":
                router.begin_update(version, wave)
            swap = await asyncio.to_thread(publisher.swap, wave)
            done = done.after(swap)
            if self.windows == "swap":
                router.end_update(version, swap.served)
        if self.windows == "publication":
            router.end_update(version, done.served)
        assert not done.failed, done.failed
        self.served_s.append(time.monotonic() - start)
        self.done.append(done)


async def _totals(clients: Sequence[EngineClient]) -> dict[str, float]:
    found = [await client.measures() for client in clients]
    return {name: sum(it[name] for it in found) for name in ("prompts", "reused")}
