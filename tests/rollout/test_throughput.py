"""The closing numbers: how late the loop came, how many programs ran, and how they are shown."""

import asyncio
import time
from dataclasses import asdict

import pytest

from agentgym_rl.core.messages import Used
from agentgym_rl.gym import SandboxStats, Services
from agentgym_rl.gym.sandbox_records import Status
from agentgym_rl.report.figures import pace_lines, token_lines, verdict_lines
from agentgym_rl.rollout import Meter
from agentgym_rl.rollout.throughput import measuring
from agentgym_rl.runtime import event_loop
from agentgym_rl.runtime.event_loop import LoopLag
from tests.kit.cases import cases


def lag_of(*late_ms: float) -> LoopLag:
    lag = LoopLag()
    for value in late_ms:
        lag.add(value)
    return lag


@cases("share, expected", [(0.5, 1.0), (0.9, 1.0), (0.91, 40.0), (1, 40.0)])
def test_a_percentile_is_right_to_a_bucket(share, expected):
    found = lag_of(*[1.0] * 90, *[40.0] * 10).percentile(share)
    assert expected <= found * 1.0001 <= expected * 1.13


def test_no_percentile_is_above_the_maximum():
    assert lag_of(5.01).summary() == {"p50": 5.01, "p99": 5.01, "max": 5.01}


def test_odd_values_have_a_place():
    assert lag_of(-0.5, 0.0).summary()["max"] == 0.0
    assert lag_of(1e9).percentile(0.5) >= 1e5
    assert LoopLag().summary() == {"p50": 0.0, "p99": 0.0, "max": 0.0}


def test_a_stall_is_seen():
    async def main() -> dict[str, float]:
        async with measuring() as meter:
            await asyncio.sleep(0.02)
            time.sleep(0.1)  # noqa: ASYNC251 - the very thing to be seen
            await asyncio.sleep(0.02)
            return meter.read(episodes=1).loop_lag_ms

    assert asyncio.run(main())["max"] >= 90


def test_time_without_a_cpu_is_no_lag(monkeypatch):
    begun_s = time.perf_counter()
    monkeypatch.setattr(event_loop, "queued_s", lambda *_: time.perf_counter() - begun_s)
    lag = LoopLag()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            measuring = tasks.create_task(lag.run())
            await asyncio.sleep(0.02)
            time.sleep(0.1)  # noqa: ASYNC251 - no CPU, by that clock
            await asyncio.sleep(0.02)
            measuring.cancel()

    asyncio.run(main())
    assert lag.summary()["max"] == 0.0


class Counted:
    """Sandboxes that did something."""

    def stats(self) -> SandboxStats:
        stats = SandboxStats()
        for status in [Status.OK] * 9000 + [Status.TIMEOUT] * 20 + [Status.MEMORY_LIMIT]:
            stats.count(status)
        return stats


def test_what_workers_used_is_added_and_a_machine_is_counted_once():
    mine = Meter(Services(Counted())).read(episodes=4).sandbox.cores
    others = [Used("there", 3, 10, {"ok": 10}), Used("there", 3, 1), Used("elsewhere", 4)]
    pace = Meter(Services(Counted())).read(episodes=4, others=others)
    assert pace.sandbox.programs == 9021 + 11
    assert pace.sandbox.statuses["ok"] == 9010
    assert pace.sandbox.cores == mine + 3 + 4


def test_programs_are_counted_by_core():
    pace = Meter(Services(Counted())).read(episodes=4)
    assert pace.sandbox is not None
    assert pace.sandbox.programs == 9021
    assert pace.sandbox.statuses == {"ok": 9000, "timeout": 20, "memory_limit": 1}
    per_core = pace.sandbox.programs_per_s_per_core * pace.sandbox.cores
    assert per_core == pytest.approx(pace.sandbox.programs_per_s)
    assert pace.episodes_per_s * 9021 == pytest.approx(4 * pace.sandbox.programs_per_s)


SANDBOX = {
    "programs": 9021,
    "programs_per_s": 92.34,
    "programs_per_s_per_core": 46.17,
    "cores": 2,
    "statuses": {"timeout": 20, "ok": 9000, "memory_limit": 1},
}
RESULT = {
    "episodes": 4608,
    "episodes_per_s": 123.4,
    "loop_lag_ms": {"p50": 0.3, "p99": 3.21, "max": 48.7},
    "sandbox": None,
    "verifier": None,
    "prompt_tokens": 123456,
    "completion_tokens": 7890,
    "uncounted_turns": 0,
    "cut_turns": 0,
    "filtered_turns": 0,
    "empty_turns": 0,
    "text_calls": 0,
    "outgrown": 0,
}


def test_the_pace_is_a_line_of_its_own():
    assert list(pace_lines(RESULT)) == ["pace             4,608 episodes, 123/s"]


def test_programs_are_lines_of_their_own():
    text = "\n".join(pace_lines(RESULT | {"sandbox": SANDBOX}))
    assert "programs         9,021 in sandboxes, 92.3/s, 46.2/s on each of 2 cores" in text
    assert text.endswith("9,000 ok, 20 timeout, 1 memory_limit")
    assert max(map(len, text.splitlines())) <= 80


def test_verifications_are_lines_of_their_own():
    queue = {"mean": 0.24, "max": 31.0}
    verifier = {"calls": 2048, "statuses": {"timeout": 3, "done": 2045}, "queue_ms": queue}
    text = "\n".join(pace_lines(RESULT | {"verifier": verifier}))
    assert "verifications    2,048: 2,045 done, 3 timeout; waits for a free" in text
    assert "0.2 ms mean, 31 ms max" in " ".join(text.split())


def test_tokens_are_shown_with_what_to_know_about_them():
    assert list(token_lines(RESULT)) == ["tokens           123,456 of prompts, 7,890 of replies"]
    text = "\n".join(token_lines(RESULT | {"uncounted_turns": 3, "cut_turns": 1200, "outgrown": 2}))
    assert "those of 3 replies that came without a count" in " ".join(text.split())
    assert "cut replies      1,200, by rollout.max_tokens" in text
    assert "outgrown         2 episodes" in text


def test_a_meter_reads_as_json_numbers():
    assert asdict(Meter().read(episodes=0))["sandbox"] is None


def test_verdicts_are_said_most_frequent_first():
    metrics = {"tool_calls": 1.0, "verdict_timeout": 0.0, "verdict_no_code": 0.75}
    assert list(verdict_lines({"metrics": metrics | {"verdict_accepted": 0.25}})) == [
        "verdicts         75.0% no_code, 25.0% accepted, of what was submitted"
    ]
    assert list(verdict_lines({"metrics": {"tool_calls": 1.0}})) == []
