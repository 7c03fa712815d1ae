"""What the controller's bookkeeping bears: episodes admitted, logged, batched and handed out a
second, and the memory that takes, with a thousand to a hundred thousand of them live.

Rollout, log, buffer, batches and controller are those of a run, event loop and collection of
garbage too, on one core: all threads of the process are counted, simulated engines included.
Players wait and return a trajectory of two turns and 300 tokens; the trainer asks for its batches,
packs them as for the wire, and reports at once. "saturated": episodes end faster than they can be
taken in; "of 10 s": as many as are live in ten seconds, which shows from when on the controller is
the limit.

Each case is a process of its own. ARL_BENCH_LIVE=1000,... which numbers; ARL_BENCH_SECONDS (20) is
how long each is measured; ARL_BENCH_PLOT=FILE is where the picture goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvloop

from agentgym_rl.config import Config, RolloutConfig
from agentgym_rl.controller.buffer import Buffer
from agentgym_rl.controller.controller import Controller
from agentgym_rl.controller.schedule import Plan
from agentgym_rl.core.batch import BatchShard, StepReport
from agentgym_rl.core.task import Task, TaskSource
from agentgym_rl.core.trajectory import Outcome, Row, Trajectory
from agentgym_rl.rollout.episode import Player
from agentgym_rl.rollout.groups import OpenGroups
from agentgym_rl.rollout.producer import Rollout, TaskCursor
from agentgym_rl.runtime.gc_pacing import paced_collections
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.metrics import MetricsFile, PhasesFile

from ._kept import plot_file
from ._toy import sized

LIVE = tuple(
    int(n)
    for n in os.environ.get("ARL_BENCH_LIVE", sized("1000,10000,100000", toy="200")).split(",")
)
SECONDS = float(os.environ.get("ARL_BENCH_SECONDS", sized("20", toy="2")))
GROUP_SIZE = 16
STALENESS = 8
BATCHES_PER_LIVE = 6
"""As many batches as episodes that are live make."""
EPISODE_S = 10.0
OFFERED_PER_S = 20_000
"""Episodes that end in a second where the controller is to be the limit."""
CHECKPOINT_EVERY = 5
STEP_S = 0.005
"""Between two looks of the simulated engines at what is due."""
LOOK_S = 0.5
GOAL = (
    "100,000 live episodes: 5,000 trajectories a second of one core admitted, logged and batched; "
    "memory grows by less than 5 % over the last two thirds"
)
GOAL_PER_S = 5_000
GOAL_GROWTH = 0.05
_TIMEOUT_S = 1800.0

PROMPT, SAMPLED, ANSWER = 60, 100, 40
"""Tokens: a prompt, a reply, a tool's answer, another reply."""
FIRST = slice(PROMPT, PROMPT + SAMPLED)
SECOND = slice(PROMPT + SAMPLED + ANSWER, None)
TEXT = "So the two numbers are to be added, and the tool can say what that is. " * 5

Case = tuple[str, int]


def run(*, live: Sequence[int] = LIVE, seconds: float = SECONDS) -> dict[str, Any]:
    """Every case; `met` says whether the goal holds."""
    from ._common import hardware, say, versions  # torch comes with it: not in the cases' processes

    rows: list[dict[str, Any]] = []
    for kind in ("saturated", f"of {EPISODE_S:g} s"):
        for number in live:
            rows.append(_in_process(kind, number, seconds))
            say(f"{rows[-1]}"[:400])
    if picture := plot_file():
        plot(rows, picture)
    most = [row for row in rows if row["live"] == 100_000 and row["system"] == "saturated"]
    return {
        "name": "controller",
        "hardware": hardware("one of them used"),
        "versions": versions("numpy", "msgspec"),
        "rows": [{k: v for k, v in row.items() if k != "rss_mb"} for row in rows],
        "ratios": {},
        "goal": GOAL,
        "met": bool(most)
        and all(row["per_core_s"] >= GOAL_PER_S for row in most)
        and all(row["growth"] < GOAL_GROWTH for row in most),
    }


def _in_process(kind: str, live: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.controller", kind, str(live), str(seconds)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        check=True,
        timeout=_TIMEOUT_S,
        cwd=Path(__file__).parents[1],
    )
    return json.loads(done.stdout)


class Tasks(TaskSource):
    """Without end."""

    def __getitem__(self, index: int, /) -> Task:
        return Task(f"t{index}", index, {"question": f"What is {index} + {index}?"})


class Simulated:
    """Plays an episode by waiting, and has its tokens ready."""

    def __init__(self, buffer: Buffer, mean_s: float) -> None:
        self._buffer = buffer
        self._mean_s = mean_s
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = itertools.count()
        self._draw = random.Random(0)
        length = PROMPT + SAMPLED + ANSWER + SAMPLED
        self._turns = np.full(length, -1, np.int32)
        self._turns[FIRST], self._turns[SECOND] = 0, 1
        self._mask = self._turns >= 0
        self._unsampled = np.full(length, -1, np.int32)
        self._temperatures = self._mask.astype(np.float32)
        self._tokens = np.random.default_rng(0).integers(0, 150_000, length, np.int32)
        self._logprobs = np.where(self._mask, -0.7, 0).astype(np.float32)
        self._times = np.where(self._mask, 0.02 * np.arange(length), 0.0)

    async def play(
        self, task: Task, *, episode_id: str, group_id: str, sampling: Any
    ) -> Trajectory:
        began = self._buffer.version
        end = asyncio.get_running_loop().create_future()
        due = time.monotonic() + self._mean_s * self._draw.uniform(0.5, 1.5)
        heapq.heappush(self._ends, (due, next(self._count), end))
        await end
        return Trajectory(
            episode_id,
            group_id,
            task.id,
            Outcome.COMPLETED,
            self._draw.random(),
            [self._row(began, self._buffer.version)],
            num_turns=2,
            metrics={"tool_calls": 1.0, "prompt_tokens": 60.0, "sampled_tokens": 200.0},
            messages=_messages(task),
            env_id="simulated",
            actions_json=[b'{"role":"assistant","content":"..."}'] * 2,
            answers=[1, 2, 3],
        )

    async def run(self) -> None:
        """Let episodes end when they are due, as many as are, every few milliseconds: as engines
        do."""
        while True:
            now = time.monotonic()
            while self._ends and self._ends[0][0] <= now:
                _, _, end = heapq.heappop(self._ends)
                if not end.done():
                    end.set_result(None)
            await asyncio.sleep(STEP_S)

    def _row(self, began: int, ended: int) -> Row:
        """Arrays of its own, as an episode's are."""
        versions = self._unsampled.copy()
        versions[FIRST], versions[SECOND] = began, ended
        return Row(
            tokens=self._tokens.copy(),
            loss_mask=self._mask.copy(),
            behavior_logprobs=self._logprobs.copy(),
            policy_versions=versions,
            admitted_versions=versions.copy(),
            temperatures=self._temperatures.copy(),
            turn_ids=self._turns.copy(),
            times_s=self._times + time.monotonic(),
        )


def _messages(task: Task) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": task.data["question"]},
        {"role": "assistant", "content": TEXT},
        {"role": "tool", "tool_call_id": "call_0", "content": "42"},
        {"role": "assistant", "content": TEXT},
    ]


class NoFleet:
    """No engine is to be told of a version."""

    wanted = False
    silent_s: Mapping[str, float] = {}

    async def begin_publication(self, version: int) -> dict[str, str]:
        return {}

    async def end_publication(self, version: int, **told: Any) -> None:
        pass


@dataclass
class Bench:
    """One case."""

    kind: str
    live: int
    seconds: float
    batched: int = 0
    steps: int = 0
    rss_mb: list[float] = field(default_factory=list[float])

    @property
    def mean_s(self) -> float:
        """How long an episode takes."""
        return self.live / OFFERED_PER_S if self.kind == "saturated" else EPISODE_S

    async def play(self, folder: Path) -> dict[str, Any]:
        groups = self.live // GROUP_SIZE
        batch = max(1, groups // BATCHES_PER_LIVE)
        config = Config(
            rollout=RolloutConfig(
                groups_per_batch=batch,
                group_size=GROUP_SIZE,
                max_staleness=STALENESS,
                max_concurrent=groups,
            ),
            steps=10**9,
            run=str(folder),
        )
        buffer = Buffer(config.rollout, total_groups=10**12)
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(contextlib.closing(EpisodeLog(folder / "episodes.db")))
            log.begin(step=0, checkpoint="", num_ranks=1)
            controller = Controller(
                config.trainer,
                config.algo,
                buffer,
                log,
                stack.enter_context(contextlib.closing(MetricsFile(folder / "metrics.jsonl"))),
                stack.enter_context(contextlib.closing(PhasesFile(folder))),
                plan=Plan(config.trainer, config.eval, steps=config.steps),
                publications=NoFleet(),
                token="",
                on_step=lambda *_: None,
            )
            player = Simulated(buffer, self.mean_s)
            rollout = Rollout(
                config.rollout,
                OpenGroups(config.rollout, buffer, log),
                TaskCursor(
                    config.rollout, Tasks(), seed=config.seed, numbers=controller.rollout_metrics
                ),
                cast("Player", player),
                seed=config.seed,
            )
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(player.run()),
                    tasks.create_task(rollout.run()),
                    tasks.create_task(self._train(controller, log)),
                ]
                found = await self._measure(log)
                for task in running:
                    task.cancel()
        return found | {"live": self.live, "groups_per_batch": batch, "group_size": GROUP_SIZE}

    async def _train(self, controller: Controller, log: EpisodeLog) -> None:
        while True:
            shard: BatchShard | None = await controller.batch(self.steps, 0)
            if shard is None:
                continue
            shard.pack()
            self.steps += 1
            names = list(dict.fromkeys(shard.group_ids))
            report = StepReport(self.steps - 1, self.steps, {"loss": 0.0}, [], names, "")
            self.batched += len(shard.rewards)
            await controller.report(report, token=controller.token)
            if self.steps % CHECKPOINT_EVERY == 0:
                await log.checkpointed(self.steps, f"step-{self.steps}")

    async def _until(self, steps: int) -> None:
        while self.steps < steps:  # noqa: ASYNC110 (the trainer has nothing to wake us with)
            await asyncio.sleep(LOOK_S)

    async def _measure(self, log: EpisodeLog) -> dict[str, Any]:
        """What happens in `seconds`, once as many episodes as are live have been through it twice;
        in no fewer than a dozen batches, since groups tend to end together."""
        await self._until(BATCHES_PER_LIVE * 2)
        begun, cpu, batched = time.monotonic(), time.process_time(), self.batched
        last = self.steps + BATCHES_PER_LIVE * 2
        while time.monotonic() - begun < self.seconds or self.steps < last:
            await asyncio.sleep(LOOK_S)
            self.rss_mb.append(_rss_mb())
        wall, cpu = time.monotonic() - begun, time.process_time() - cpu
        batched = self.batched - batched
        third = len(self.rss_mb) // 3
        before, after = max(self.rss_mb[: third + 1]), max(self.rss_mb[-third - 1 :])
        return {
            "system": self.kind,
            "per_s": round(batched / wall),
            "per_core_s": round(batched / cpu),
            "cpu_us": round(cpu / max(1, batched) * 1e6, 1),
            "cpu_share": round(cpu / wall, 2),
            "batches": self.steps,
            "seconds": round(wall, 1),
            "log_mb": round(_size_mb(log.path.parent)),
            "rss_end_mb": round(after),
            "growth": round(after / before - 1, 3),
            "rss_mb": [round(mb) for mb in self.rss_mb],
        }


def _size_mb(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Throughput by live episodes, and memory over time with the most of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for kind in dict.fromkeys(row["system"] for row in rows):
        of = [row for row in rows if row["system"] == kind]
        left.plot(
            [r["live"] for r in of],
            [r["per_core_s"] for r in of],
            "o-",
            label=f"{kind}, per core second",
        )
        left.plot(
            [r["live"] for r in of], [r["per_s"] for r in of], "x--", label=f"{kind}, per second"
        )
        for row in of[-1:]:
            times = [LOOK_S * n for n in range(len(row["rss_mb"]))]
            right.plot(times, row["rss_mb"], label=f"{kind}, {row['live']:,} live")
    left.axhline(GOAL_PER_S, color="gray", linewidth=0.8, linestyle=":")
    left.set(xscale="log", yscale="log", xlabel="live episodes", ylabel="trajectories")
    right.set(xlabel="seconds", ylabel="resident memory, MB", ylim=(0, None))
    for panel in (left, right):
        panel.legend(fontsize="small")
    figure.savefig(path, dpi=110)


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def main(kind: str, live: int, seconds: float) -> None:
    with (
        _one_core(),
        paced_collections(),
        tempfile.TemporaryDirectory(prefix="arl-bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(Bench(kind, live, seconds).play(Path(folder)))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
