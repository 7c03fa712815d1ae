"""The trainer's rows of `arl bench real`: a step compared with TRL's GRPOTrainer, memory, bfloat16,
batches without advantages, and publications compared with a copy of their bytes.

Every comparison takes turns in one run, and CPU seconds are compared, so that a busy machine slows
both alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from agentgym_rl.core import SamplingParams
from agentgym_rl.engines import HttpEngine
from agentgym_rl.storage import WeightsFolder
from agentgym_rl.weights import Publisher, SharedFiles
from agentgym_rl.weights.publish import Published
from tests.kit.publishing import publish_now

from ._common import engine_server, model_config, no_peer, peer_python, say
from ._real_engine import Part

TRL_PYTHON = peer_python("trl")
_CHILD = Path(__file__).parent / "trainer_loops" / "real_step.py"
_TIMEOUT_S = 120.0
_MOST_MEMORY, _MOST_COPIES, _MOST_PAUSE = 6.0, 5.0, 1.0
_FASTER = {"own": 1.3, "shared": 2.0}
"""The goal for the speed relative to TRL, by the prompts of a group's eight rows."""


class Child:
    """A trainer in a process of its own; see `trainer_loops/real_step.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.loaded = self._line()
        self.weights_bytes: int = self.loaded["weights_bytes"]

    def do(self, word: str) -> dict[str, Any]:
        """Send one command; return its report."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._line()

    def times_weights(self, found: Mapping[str, Any]) -> float:
        """Return the peak of memory as a multiple of the float32 weights."""
        return round(found["peak_bytes"] / self.weights_bytes, 2)

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # TRL's log is on stdout, too
                if isinstance(found := json.loads(line), dict) and "cpu_s" in found:
                    return found
        raise RuntimeError(f"the trainer ended: {self._process.wait()}")


@contextlib.contextmanager
def child(folder: Path, system: str, **options: object) -> Iterator[Child]:
    """Start `system`, ours or trl, with one thread; end it at exit."""
    python = TRL_PYTHON if system == "trl" else sys.executable
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        given = {"system": system, "model": folder, "scratch": scratch, **options}
        flags = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
        process = subprocess.Popen(
            [python, str(_CHILD), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        try:
            yield Child(process)
        finally:
            process.kill()
            process.wait()


def step(prompts: str, folder: Path, rounds: int) -> Part:
    """Compare a step with TRL's: a group of eight rows that share a prompt, or have their own;
    one optimizer step, micro-batches as each system has them by default."""
    part = Part()
    if not TRL_PYTHON:
        part.rows.append({"system": "trl", "skipped": no_peer("trl")})
        return part
    with (
        child(folder, "ours", prompts=prompts) as ours,
        child(folder, "trl", prompts=prompts) as trl,
    ):
        systems = {"ours": ours, "trl": trl}
        for one in systems.values():
            one.do("step")  # the first one makes the optimizer's state
        found = [{name: one.do("step") for name, one in systems.items()} for _ in range(rounds)]
    seconds = {name: [both[name]["cpu_s"] for both in found] for name in systems}
    for name, one in systems.items():
        row: dict[str, Any] = {"system": name, "prompts": prompts}
        row["step_cpu_s"] = round(statistics.median(seconds[name]), 2)
        row["peak_times_weights"] = max(one.times_weights(both[name]) for both in found)
        kept = ("row_tokens", "computed_tokens", "microbatch_tokens")
        part.rows.append(row | {key: found[0][name][key] for key in kept if key in found[0][name]})
    ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds["trl"], strict=True))
    part.compare(f"step, {prompts} prompts: TRL / ours", ratio, at_least=_FASTER[prompts])
    return part


def memory(folder: Path, rounds: int) -> Part:
    """Measure the peak of memory while the trainer loads, trains, publishes and saves."""
    part = Part()
    words = ("step", "publish", "checkpoint", "step", "publish", "flat")
    with child(folder, "ours") as ours:
        peaks = {"load": ours.times_weights(ours.loaded)}
        seconds: dict[str, list[float]] = {}
        for word in words:
            found = ours.do(word)
            peaks[word] = max(peaks.get(word, 0.0), ours.times_weights(found))
            seconds.setdefault(word, []).append(found["cpu_s"])
    for name, times in peaks.items():
        row: dict[str, Any] = {"system": "ours", "phase": name, "peak_times_weights": times}
        part.rows.append(row | ({"cpu_s": round(min(seconds[name]), 3)} if name in seconds else {}))
    part.compare("peak memory / float32 weights", max(peaks.values()), at_most=_MOST_MEMORY)
    share = min(seconds["flat"]) / min(seconds["step"])
    part.compare("batch without advantage / step", share, at_most=0.02)
    return part


def half(folder: Path, rounds: int) -> Part:
    """Compare bfloat16 with float32: a step, and the log-probs of the same tokens."""
    part = Part()
    with child(folder, "ours") as single, child(folder, "ours", dtype="bfloat16") as half:
        systems = {"float32": single, "bfloat16": half}
        said = {name: torch.tensor(one.do("logprobs")["logprobs"]) for name, one in systems.items()}
        for one in systems.values():
            one.do("step")
        found = [{name: one.do("step") for name, one in systems.items()} for _ in range(rounds)]
    gap = (said["bfloat16"] - said["float32"]).abs()
    for name, one in systems.items():
        row: dict[str, Any] = {"system": "ours", "dtype": name}
        row["step_cpu_s"] = round(statistics.median(both[name]["cpu_s"] for both in found), 2)
        row["peak_times_weights"] = max(one.times_weights(both[name]) for both in found)
        row["grad_norm"] = round(found[0][name]["grad_norm"], 4)
        part.rows.append(row)
    part.rows[-1] |= {"mean_abs_gap": float(gap.mean()), "max_abs_gap": float(gap.max())}
    ratio = statistics.median(b["float32"]["cpu_s"] / b["bfloat16"]["cpu_s"] for b in found)
    part.ratios["step: float32 / bfloat16"] = round(ratio, 2)
    return part


def publication(folder: Path, rounds: int) -> Part:
    """Compare a publication to an embedded engine that samples with a copy of the same bytes in
    memory, in turns; and one of unchanged weights."""
    part = Part()
    torch.set_num_threads(1)
    base = load_file(folder / "model.safetensors")
    size = sum(tensor.nbytes for tensor in base.values())
    config = model_config(folder, [("engine.type", "embedded"), ("engine.max_model_len", 1024)])
    with (
        engine_server(config) as url,
        WeightsFolder("bench-publication", need_bytes=4 * size) as shared,
    ):
        found = asyncio.run(_publish(url, shared, base, rounds))
    copies = statistics.median(it["copy_s"] for it in found)
    for name in ("copy_s", "write_s", "stage_s", "pause_s", "whole_s", "unchanged_s"):
        row = {"system": "ours", "phase": name.removesuffix("_s"), "megabytes": size >> 20}
        seconds = statistics.median(it[name] for it in found)
        row |= {"wall_ms": round(1e3 * seconds, 1), "times_copy": round(seconds / copies, 2)}
        part.rows.append(row)
    whole, pause = (
        statistics.median(it[name] / it["copy_s"] for it in found)
        for name in ("whole_s", "pause_s")
    )
    part.compare("publication / copy of its bytes", whole, at_most=_MOST_COPIES)
    part.compare("pause / copy of its bytes", pause, at_most=_MOST_PAUSE)
    return part


async def _publish(
    url: str, shared: Path, base: Mapping[str, torch.Tensor], rounds: int
) -> list[dict[str, float]]:
    client = HttpEngine(url)
    await client.name_version(0)
    publisher = Publisher(
        transport=SharedFiles(shared), interrupt="keep", timeout_s=_TIMEOUT_S, polls_staging=False
    )
    found: list[dict[str, float]] = []
    try:
        async with asyncio.timeout(_TIMEOUT_S * rounds), asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(_sample(client))
            tensors: Mapping[str, torch.Tensor] = {}
            for number in range(1, rounds + 1):
                tensors = {name: tensor + 1e-6 * number for name, tensor in base.items()}
                found.append(await asyncio.to_thread(_changed, publisher, url, tensors, number))
            for number, one in enumerate(found, start=rounds + 1):
                one["unchanged_s"] = await asyncio.to_thread(
                    _unchanged, publisher, url, tensors, number
                )
                say(f"  {one}")
            sampling.cancel()
    finally:
        await client.close()
    return found


def _changed(
    publisher: Publisher, url: str, tensors: Mapping[str, torch.Tensor], number: int
) -> dict[str, float]:
    """Copy the tensors; publish them as version `number`, as the trainer does it."""
    times = [time.perf_counter()]
    copies = [tensor.clone() for tensor in tensors.values()]
    times.append(time.perf_counter())
    del copies
    times.append(time.perf_counter())
    publisher.prepare(number, tensors)
    times.append(time.perf_counter())
    done: Published = publish_now(publisher, {"engine-0": url}, number)
    times.append(time.perf_counter())
    publisher.transport.tidy()
    return {
        "copy_s": times[1] - times[0],
        "write_s": times[3] - times[2],
        "stage_s": done.stage_s,
        "pause_s": done.pause_s,
        "whole_s": times[4] - times[2],
    }


def _unchanged(
    publisher: Publisher, url: str, tensors: Mapping[str, torch.Tensor], number: int
) -> float:
    """Publish the tensors of the version before as `number`; return the seconds."""
    start = time.perf_counter()
    publisher.prepare(number, tensors)
    publish_now(publisher, {"engine-0": url}, number, same_as=number - 1)
    seconds = time.perf_counter() - start
    publisher.transport.tidy()
    return seconds


async def _sample(client: HttpEngine) -> None:
    """Sample one reply after the other, until cancelled."""
    for number in range(1_000_000):
        async for _ in client.generate(
            [5, 80, 33, number % 500],
            SamplingParams(max_tokens=64),
            request_id=f"r{number}",
            session_id=f"r{number}",
            stream=True,
        ):
            pass


PARTS: Mapping[str, Callable[[Path, int], Part]] = {
    "trainer_own": lambda folder, rounds: step("own", folder, rounds),
    "trainer_shared": lambda folder, rounds: step("shared", folder, rounds),
    "trainer_memory": memory,
    "trainer_bfloat16": half,
    "publication": publication,
}
"""The parts by name. Each measures the model in a folder in that many rounds."""
