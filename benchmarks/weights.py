"""The cost of a weight update: the pause of sampling, by interrupt mode and model size; the bytes,
seconds and memory of a publication, by transport and number of ranks; and the tokens that sessions
compute again, because a version was published (the part "reuse", see `_prefills.py`).

ARL_BENCH_PARTS=embedded,sglang measures only these parts; ARL_BENCH_MODELS=1M,12M only these sizes.
Publications (the part "publication", see `_publication.py`) are of sizes of their own: 135M is the
folder of `--model FOLDER`, or of ARL_REAL_MODEL; 1.3B, which takes 6 GB of memory and many minutes,
is measured only if it is named. ARL_BENCH_ROWS=FILE keeps each case of it, and kept cases are not
measured again.

In each case of the other parts eight long turns are in flight, and versions are published one after
the other at random moments, as the trainer does it. "pause" is the time in which the engine samples
nothing; staging goes on during sampling. Bytes per second are compared with a plain copy of the
same tensors in memory, in the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from arl_sglang.client import SglangEngine
from arl_vllm.client import VllmEngine
from safetensors.torch import load_file
from torch import Tensor

from agentgym_rl.core import ConfigError, Interrupt, SamplingParams
from agentgym_rl.engines import EngineClient, HttpEngine, Router
from agentgym_rl.storage import WeightsFolder
from agentgym_rl.weights import Publisher, SharedFiles, recognized
from agentgym_rl.weights.publish import Published
from tests.kit.publishing import published

from . import _prefills, _publication, real
from ._common import (
    SGLANG_PYTHON,
    VLLM_PYTHON,
    engine_server,
    hardware,
    model_config,
    no_peer,
    qwen3,
    say,
    versions,
)
from ._toy import sized

UPDATES = sized(20, toy=2)
IN_FLIGHT = 8
MODELS: Mapping[str, tuple[int, int]] = {"1M": (128, 3), "12M": (384, 6), "42M": (640, 8)}
"""The hidden size and layers of random Qwen3 models in float32."""
SIZES = (*MODELS, "135M", _publication.LARGE)
PYTHONS = {"vllm": VLLM_PYTHON, "sglang": SGLANG_PYTHON}
PARTS = ("embedded", *PYTHONS, "publication", "reuse")
GOAL = (
    "every update lands, no turn fails; the pause is below one second up to 42M parameters "
    "(not counted: SGLang's abort, which looks once a second whether all requests are gone); "
    + _prefills.GOAL
)
NO_GOAL = "none here: a test holds bytes and memory against the formulas of docs/scale.md"
_TIMEOUT_S = 120.0
_REST_S = 1.0
"""The longest random wait between two updates, in seconds."""
_WARM_UP_S = 2.0


def run(
    *, updates: int = UPDATES, models: Sequence[str] = (), model: Path | None = None
) -> dict[str, Any]:
    """Measure every requested part and model; `met` is whether the goal holds. `models` are names
    of sizes; empty: those of ARL_BENCH_MODELS.

    Raises:
        ConfigError: there is no such part or size.
    """
    torch.set_num_threads(1)
    parts = _listed("ARL_BENCH_PARTS", PARTS, PARTS)
    sizes = models or _listed(
        "ARL_BENCH_MODELS",
        SIZES,
        sized([it for it in SIZES if it != _publication.LARGE], toy=["1M", "135M"]),
    )
    skipped = [no_peer(name) for name, python in PYTHONS.items() if name in parts and not python]
    engines = [it for it in parts if it == "embedded" or PYTHONS.get(it)]
    rows = _pauses(engines, [it for it in sizes if it in MODELS], updates)
    worst = max((row["pause_max_ms"] for row in rows if _counts(row)), default=0)
    met = worst < 1000 and all(row["failed_turns"] == 0 for row in rows)
    ratios = _ratios(rows)
    if "publication" in parts:
        lacks = real.lacking(model) if "135M" in sizes else ""
        folder = None if lacks or "135M" not in sizes else real.folder_of(model)
        skipped += [f"publication of 135M: {lacks}"] if lacks else []
        rows += _publication.measured(folder, large=_publication.LARGE in sizes)
    if "reuse" in parts:
        found = _prefills.measured(["embedded", *(["vllm"] if PYTHONS["vllm"] else [])])
        met = met and all(it["share_of_allowed"] <= 1 for it in found if it["salts"] == "swap")
        rows, engines = rows + found, [*engines, "reuse"]
    return {
        "name": "weights",
        "hardware": hardware("1 thread a process"),
        "versions": versions(),
        "rows": rows,
        "ratios": ratios,
        "skipped": skipped,
        "goal": GOAL if engines else NO_GOAL,
        "met": met if engines else None,
    }


def _listed(name: str, known: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return the list in an environment variable, in its order."""
    asked = [it for it in os.environ.get(name, "").split(",") if it]
    if odd := sorted(set(asked) - set(known)):
        raise ConfigError(f"{name} names {', '.join(odd)}; there are {', '.join(known)}")
    return asked or list(default)


def _pauses(engines: Sequence[str], models: Sequence[str], updates: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        for name in models if engines else ():
            hidden, layers = MODELS[name]
            folder = Path(scratch) / name
            size = qwen3(folder, hidden=hidden, layers=layers)
            for engine in engines:
                say(f"{engine}, {size / 1e6:.1f}M parameters")
                rows += _measure(engine, folder, size, updates)
    return rows


def _counts(row: Mapping[str, Any]) -> bool:
    """Return whether the goal is about the pause of this row; the one of `wait` has the drain."""
    return row["interrupt"] != "wait" and (row["system"], row["interrupt"]) != (
        "agentgym-rl sglang",
        "abort",
    )


def _measure(engine: str, folder: Path, size: int, updates: int) -> list[dict[str, Any]]:
    overrides: list[tuple[str, Any]] = [
        ("engine.type", engine),
        ("engine.max_model_len", 2048),
    ]
    if engine in PYTHONS:
        overrides.append(("engine.python", PYTHONS[engine]))
    if engine == "sglang":  # the server serves every mode without the overlap scheduler
        overrides.append(("rollout.interrupt", "keep"))
        # These models have no end token, which the other backends want.
        overrides.append(("engine.flags", ["--grammar-backend=none"]))
    rows: list[dict[str, Any]] = []
    base = load_file(folder / "model.safetensors")
    with (
        engine_server(model_config(folder, overrides)) as url,
        WeightsFolder(f"bench-{folder.name}-{engine}", need_bytes=16 * size) as shared,
    ):
        for interrupt in get_args(Interrupt):
            case = _Case(engine, url, interrupt, shared, base, folder)
            published = asyncio.run(case.play(updates))
            rows.append(_row(case, published, size))
            say(f"  {interrupt}: {rows[-1]['pause_median_ms']} ms")
    return rows


@dataclass
class _Case:
    engine: str
    url: str
    interrupt: Interrupt
    shared: Path
    base: Mapping[str, Tensor]
    model_dir: Path
    tokens: int = 0
    failed: int = 0
    seconds: float = 0.0
    copy_bytes_per_s: list[float] = field(default_factory=list)

    async def play(self, updates: int) -> list[Published]:
        """Publish `updates` versions while turns run one after the other, eight at a time."""
        is_vllm = self.engine == "vllm"
        client: EngineClient
        if self.engine == "sglang":
            client = SglangEngine(self.url, model_dir=self.model_dir)
        elif is_vllm:
            client = VllmEngine(self.url, send_seed=False, polls_staging=True)
        else:
            client = HttpEngine(self.url)
        await client.name_version(0)
        router = Router(interrupt=self.interrupt, wait_s=_TIMEOUT_S)
        router.add("engine-0", client, version=0)
        publisher = Publisher(
            recognize=recognized,
            transport=SharedFiles(self.shared, model_dir=self.model_dir),
            interrupt=self.interrupt,
            timeout_s=_TIMEOUT_S,
            polls_staging=is_vllm,
        )
        start = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_S * 5), self._load(router):
                await asyncio.sleep(_WARM_UP_S)
                self.tokens, start = 0, time.monotonic()
                draw = random.Random(0)
                return [
                    await self._publish(router, publisher, version, draw.uniform(0, _REST_S))
                    for version in range(1, updates + 1)
                ]
        finally:
            self.seconds = time.monotonic() - start
            publisher.close()
            await client.close()

    async def _publish(
        self, router: Router, publisher: Publisher, version: int, rest_s: float
    ) -> Published:
        await asyncio.sleep(rest_s)
        tensors = {name: tensor + 1e-4 * version for name, tensor in self.base.items()}
        self.copy_bytes_per_s.append(_copy_rate(tensors))
        await asyncio.to_thread(publisher.prepare, version, tensors)
        router.begin_update(version)
        done = await published(publisher, {"engine-0": self.url}, version)
        router.end_update(version, done.served)
        return done

    @contextlib.asynccontextmanager
    async def _load(self, router: Router) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            turns = [tasks.create_task(self._turns(router, i)) for i in range(IN_FLIGHT)]
            yield
            for turn in turns:
                turn.cancel()

    async def _turns(self, router: Router, slot: int) -> None:
        """Return the lengths of turns: most are short, one in ten is ten times as long."""
        draw = random.Random(slot)
        for number in range(1_000_000):
            length = draw.choice([*[40] * 9, 400])
            name = f"{self.interrupt}-{slot}-{number}"
            found = 0
            async for delta in router.generate(
                [5 + slot, 80, 33, number % 500],
                SamplingParams(max_tokens=length),
                request_id=name,
                session_id=name,
                stream=True,
            ):
                found += len(delta.token_ids)
                self.tokens += len(delta.token_ids)
            self.failed += found != length


def _copy_rate(tensors: Mapping[str, Tensor]) -> float:
    start = time.perf_counter()
    copies = [tensor.clone() for tensor in tensors.values()]
    size = sum(copy.numel() * copy.element_size() for copy in copies)
    return size / (time.perf_counter() - start)


def _row(case: _Case, published: Sequence[Published], size: int) -> dict[str, Any]:
    pauses = [p.pause_s * 1e3 for p in published]
    stages = [p.stage_s for p in published]
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in case.base.values())
    return {
        "system": f"agentgym-rl {case.engine}",
        "parameters": size,
        "interrupt": case.interrupt,
        "pause_median_ms": round(statistics.median(pauses), 1),
        "pause_max_ms": round(max(pauses), 1),
        "stage_median_ms": round(statistics.median(stages) * 1e3, 1),
        "stage_bytes_per_s": round(size_bytes / statistics.median(stages)),
        "swap_bytes_per_s": round(size_bytes / (statistics.median(pauses) / 1e3)),
        "copy_bytes_per_s": round(statistics.median(case.copy_bytes_per_s)),
        "tokens_per_s": round(case.tokens / case.seconds),
        "updates": len(published),
        "failed_turns": case.failed,
    }


def _ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the throughput under updates, by mode, over that of waiting for requests to end."""
    drained = {(r["system"], r["parameters"]): r["tokens_per_s"] for r in rows
               if r["interrupt"] == "wait"}  # fmt: skip
    return {
        f"{r['system']} {r['parameters'] / 1e6:.1f}M {r['interrupt']} / wait": round(
            r["tokens_per_s"] / drained[r["system"], r["parameters"]], 2
        )
        for r in rows
        if r["interrupt"] != "wait"
    }
