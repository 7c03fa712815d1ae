"""The time that the gateway adds to a turn, compared with the LiteLLM proxy, in front of a model
that replies at once.

Conversations of 64 turns of 300 new and 200 sampled tokens grow to 32,000 tokens. The measured
process has one core, the model and the client have the other. Latency is measured with one
conversation at a time, and again at 100 turns a second with independent arrivals from 8
conversations. It is the client's wait from the moment a turn was due, minus the wait of the same
client for the same model without a gateway (`no gateway`: the client's own work, the network, the
model). Then turns per second with 16 conversations; the wait of turns at that pace while another
client sends the largest accepted requests, one after the other; and memory and errors of 1,000 open
sessions for ARL_SOAK_S seconds (default 20).

The LiteLLM proxy has a Python of its own (`make bench-peers`); without, it is skipped, by name.
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
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_rl.cluster import free_port

from ._common import hardware, no_peer, peer_python, say, versions
from ._toy import sized
from .gateway_loops.load import Shape, Turn, largest, play, play_with_requests

ROUNDS = sized(5, toy=1)
LONG = Shape(num_turns=sized(64, toy=8), new_tokens=300)
SOAK = Shape(num_turns=8, new_tokens=100)
SAMPLED = 200
AT_ONCE = 16
PACED, PACE = 8, 100.0
"""The number of conversations, and of turns per second of all together."""
LARGEST_BYTES = 3_900_000
"""The size of a large request, a little below the default of `gateway.max_body_bytes`."""
SESSIONS = sized(1000, toy=20)
SOAK_S = float(os.environ.get("ARL_SOAK_S", sized("20", toy="1")))
LITELLM = peer_python("litellm")
GOALS = {
    "added_p50_ms": 1.0, "added_p99_ms": 5.0, "turns_per_s": 1000.0,
    "last_over_first": 1.5, "errors": 0, "p99_with_largest_ms": 50.0,
}  # fmt: skip
_ROOT = Path(__file__).parents[1]
_START_S = 90.0


@dataclass
class System:
    """A system with an endpoint at `url` that can make keys."""

    name: str
    url: str
    process: subprocess.Popen[str] | None = None
    key: str = "none"

    def keys(self, count: int) -> list[str]:
        """Return the keys of new sessions; the previous ones are closed."""
        return self.order(count)["keys"] if self.process else [self.key] * count

    def order(self, count: int) -> dict[str, Any]:
        """Return the report of our gateway for a request of a number of sessions."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def run() -> dict[str, Any]:
    """Run the benchmark; return the JSON object of `arl bench gateway --json`."""
    with contextlib.ExitStack() as stack:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[-1:])
        stack.callback(os.sched_setaffinity, 0, cores)
        model = stack.enter_context(_process("upstream", str(SAMPLED), core=cores[-1]))[1]
        direct = System("no gateway", f"{model}/v1/chat/completions")
        process, url = stack.enter_context(_process("ours", model, str(SAMPLED), core=cores[0]))
        ours = System("ours", f"{url}/chat/completions", process)
        systems = [direct, ours]
        skipped: list[dict[str, Any]] = []
        if LITELLM:
            systems.append(stack.enter_context(_litellm(model, core=cores[0])))
        else:
            skipped = [{"system": "LiteLLM proxy", "skipped": no_peer("litellm")}]
        one: dict[str, list[Turn]] = {system.name: [] for system in systems}
        paced: dict[str, list[Turn]] = {system.name: [] for system in systems}
        many: dict[str, list[float]] = {system.name: [] for system in systems}
        for number in range(ROUNDS):
            for system in systems:
                turns, _ = asyncio.run(play(system.url, system.keys(1), LONG, concurrent=1))
                one[system.name] += turns
                keys = system.keys(AT_ONCE)
                turns, took_s = asyncio.run(play(system.url, keys, LONG, concurrent=AT_ONCE))
                many[system.name].append(len(turns) / took_s)
                if many[system.name][-1] > 1.5 * PACE:  # a growing queue has no meaningful latency
                    keys = system.keys(PACED)
                    playing = play(system.url, keys, LONG, concurrent=PACED, turns_per_s=PACE)
                    paced[system.name] += asyncio.run(playing)[0]
            say(f"round {number + 1} of {ROUNDS}")
        before = ours.order(1)["cpu_s"]
        asyncio.run(play(ours.url, ours.keys(4), LONG, concurrent=4))
        cpu_ms = 1e3 * (ours.order(0)["cpu_s"] - before) / (4 * LONG.num_turns)
        beside = _with_largest(ours)
        soak = _soak(ours)
    base = one[direct.name]
    rows = [_row(s.name, one[s.name], base, many[s.name]) for s in systems]
    for row in rows:
        row |= _paced(paced[row["system"]], paced[direct.name], is_base=row is rows[0])
    rows[1]["cpu_ms_per_turn"] = round(cpu_ms, 3)
    figures = {
        name: rows[1][name]
        for name in ("added_p50_ms", "added_p99_ms", "turns_per_s", "last_over_first")
    } | {"errors": soak["errors"], "p99_with_largest_ms": beside["paced_p99_ms"]}
    return {
        "name": "gateway",
        "hardware": hardware("the gateway on one core, model and client on another"),
        "versions": versions("uvicorn", "aiohttp", "tokenizers"),
        "rows": [*rows, *skipped, beside, soak],
        "ratios": {
            f"{name}, ours / {row['system']}": round(rows[1][name] / row[name], 4)
            for row in rows[2:]
            for name in ("added_p50_ms", "added_p99_ms", "turns_per_s")
        },
        "figures": figures,
        "goal": GOALS,
        "met": {
            name: figure >= GOALS[name] if name == "turns_per_s" else figure <= GOALS[name]
            for name, figure in figures.items()
        },
    }


def _row(
    name: str, turns: Sequence[Turn], base: Sequence[Turn], rates: Sequence[float]
) -> dict[str, Any]:
    """Return the row of one turn at a time: the additions to the medians and 99th percentiles of
    `base`."""
    last = LONG.num_turns - 1
    of = {
        (who, at): [1e3 * turn.latency_s for turn in them if low <= turn.number < high]
        for who, them in (("it", turns), ("base", base))
        for at, low, high in (
            ("first", 1, last // 4 + 1), ("last", last - last // 4, last + 1), ("all", 0, last + 1)
        )
    }  # fmt: skip
    added = {
        at: statistics.median(of["it", at]) - statistics.median(of["base", at])
        for at in ("first", "last", "all")
    }
    p99 = statistics.quantiles(of["it", "all"], n=100)[98]
    base_p99 = statistics.quantiles(of["base", "all"], n=100)[98]
    row: dict[str, Any] = {
        "system": name,
        "p50_ms": round(statistics.median(of["it", "all"]), 3),
        "p99_ms": round(p99, 3),
        "turns_per_s": round(statistics.median(rates), 1),
        "turns": len(turns),
    }
    if turns is base:
        return row
    return row | {
        "added_p50_ms": round(added["all"], 3),
        "added_p50_ms_at_8k_tokens": round(added["first"], 3),
        "added_p50_ms_at_32k_tokens": round(added["last"], 3),
        "added_p99_ms": round(p99 - base_p99, 3),
        "last_over_first": round(added["last"] / added["first"], 3),
    }


def _paced(turns: Sequence[Turn], base: Sequence[Turn], *, is_base: bool) -> dict[str, Any]:
    """Return the row at `PACE`; without latencies if the system could not keep up."""
    if not turns or not base:
        return {}
    (p50, p99), (base50, base99) = (
        (statistics.median(them), statistics.quantiles(them, n=100)[98])
        for them in ([1e3 * turn.latency_s for turn in whose] for whose in (turns, base))
    )
    figures = {"paced_p50_ms": round(p50, 3), "paced_p99_ms": round(p99, 3)}
    if is_base:
        return figures
    added = {"paced_added_p50_ms": p50 - base50, "paced_added_p99_ms": p99 - base99}
    return figures | {name: round(value, 3) for name, value in added.items()}


def _with_largest(ours: System) -> dict[str, Any]:
    """Measure turns at `PACE` while another client sends the largest requests."""
    *keys, key = ours.keys(PACED + 1)
    requests = largest(LARGEST_BYTES)
    playing = play_with_requests(ours.url, keys, LONG, requests, key, turns_per_s=PACE)
    turns, took_s = asyncio.run(playing)
    latencies = [1e3 * turn.latency_s for turn in turns]
    return {
        "system": "ours",
        "beside_requests_mb": LARGEST_BYTES / 1e6,
        "beside_requests": len(took_s),
        "beside_request_max_ms": round(1e3 * max(took_s, default=0.0), 1),
        "turns": len(turns),
        "paced_p50_ms": round(statistics.median(latencies), 3),
        "paced_p99_ms": round(statistics.quantiles(latencies, n=100)[98], 3),
    }


def _soak(ours: System) -> dict[str, Any]:
    """Open and close sessions, `SESSIONS` at a time, all with concurrent requests."""
    errors, played, memory = 0, 0, []
    end = time.monotonic() + SOAK_S
    while time.monotonic() < end or len(memory) < 3:
        answer = ours.order(SESSIONS)
        errors += len(answer["errors"])
        for error in answer["errors"]:
            say(f"soak: {error}")
        memory.append(answer["rss_mb"])
        try:
            turns, _ = asyncio.run(play(ours.url, answer["keys"], SOAK, concurrent=SESSIONS))
            played += len(turns)
        except* (RuntimeError, OSError, TimeoutError) as group:
            errors += len(group.exceptions)
            say(f"soak: {group.exceptions[0]!r}")
        say(f"soak: {played} turns, {memory[-1]:.0f} MB, {errors} errors")
    return {
        "system": "ours",
        "sessions_at_once": SESSIONS,
        "seconds": SOAK_S,
        "turns": played,
        "errors": errors,
        "rss_mb_first": memory[1],  # what 1,000 sessions once needed
        "rss_mb_last": memory[-1],
    }


# ---------------------------------------------------------------------- processes
@contextlib.contextmanager
def _process(name: str, *argv: str, core: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process of gateway_loops on one core; yield its URL."""
    process = subprocess.Popen(
        [
            "taskset",
            "-c",
            str(core),
            sys.executable,
            "-m",
            f"benchmarks.gateway_loops.{name}",
            *argv,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{name} did not start")
        yield process, json.loads(line)["url"]
    finally:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait(10)
        process.stdout.close()


def _pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


@contextlib.contextmanager
def _litellm(model_url: str, *, core: int) -> Iterator[System]:
    """Start the LiteLLM proxy with one worker, no database and no callbacks."""
    port, key = free_port(), "sk-bench"
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as name:
        folder = Path(name)
        parameters = {"model": "openai/m", "api_base": f"{model_url}/v1", "api_key": "none"}
        models = [{"model_name": "m", "litellm_params": parameters}]
        config = {"model_list": models, "general_settings": {"master_key": key}}
        (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        bind = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        program = str(Path(LITELLM).with_name("litellm"))
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    "taskset",
                    "-c",
                    str(core),
                    program,
                    "--config",
                    str(folder / "config.yaml"),
                    *bind,
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"LITELLM_LOG": "ERROR"},
            )
        try:
            _wait(f"http://127.0.0.1:{port}/health/liveliness", process, folder / "log")
            yield System("LiteLLM proxy", f"http://127.0.0.1:{port}/v1/chat/completions", key=key)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait(10)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.5)
    raise RuntimeError(f"the LiteLLM proxy did not start:\n{log.read_text()[-3000:]}")
