"""Groups at once: fixed, and adapted while the run goes on, in real runs.

The main job, and the same with a calculator that takes a second to answer, each with few groups at
once, the default, as many as the bound on staleness admits, and `rollout.concurrency = "adaptive"`;
five rounds by turns. It takes half an hour; with ARL_BENCH_ROWS=FILE finished runs are kept in that
file, and an interrupted measurement goes on. The machine has to be otherwise idle.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from arl_envs.math.env import MathEnv

from agentgym_rl.controller.concurrency import METRIC
from agentgym_rl.core.chat import Message
from agentgym_rl.gym.env import Step

from ._common import hardware, say, versions
from ._kept import keep_row, read_rows, rows_file
from ._runs import Run, RunFailed, train
from ._toy import sized

ROUNDS = sized(5, toy=1)
TOOL_S = sized(1.0, toy=0.05)
SETTLED = sized(10, toy=1)
"""Batches after which the rate is looked at: until then an adapted run still looks for its own."""

_SLOW = (
    *("--env=benchmarks.adaptive:SlowTools", "--rollout.max_staleness=4"),
    *("--rollout.groups_per_batch=4", "--rollout.group_size=4"),
)
SETTINGS: Mapping[str, tuple[Sequence[str], Sequence[int]]] = {
    "the main job": (("--env=math",), sized((2, 16, 24), toy=(2,))),
    f"tools of {TOOL_S:g} s": (_SLOW, sized((2, 8, 20), toy=(2,))),
}
"""Flags, and how many groups at once where that is fixed: few, the default, all that the bound on
staleness admits."""
ADAPTED = "adapted"
GOAL = "none: it is a survey. `met` says whether every run came to its end"
JOB = ("--agent=react", "--eval.num_tasks=0", "--logging.plot=false", "--steps=30")

Row = dict[str, Any]


class SlowTools(MathEnv):
    """The math environment with a calculator that somebody far away has."""

    async def step(self, action: Message) -> Step:
        if action.get("tool_calls"):
            await asyncio.sleep(TOOL_S)
        return await super().step(action)


def run() -> dict[str, Any]:
    """One row for each setting and way; `met` says whether every run came to its end."""
    rows = _rows(rows_file())
    adapted = {row["setting"]: row for row in rows if row["groups_at_once"] == ADAPTED}
    return {
        "name": "adaptive",
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
        "ratios": {
            f"{row['setting']}: adapted / {row['groups_at_once']}": round(
                adapted[row["setting"]]["episodes_per_s"] / row["episodes_per_s"], 2
            )
            for row in rows
            if row["groups_at_once"] != ADAPTED and row["runs"] and adapted[row["setting"]]["runs"]
        },
        "goal": GOAL,
        "met": all(row["runs"] == ROUNDS for row in rows),
    }


def _rows(kept: Path | None) -> list[Row]:
    runs = read_rows(kept)
    for number in range(ROUNDS):
        for setting, (flags, fixed) in SETTINGS.items():
            for way, more in _ways(fixed).items():
                key = {"setting": setting, "groups_at_once": way, "round": number}
                if any(key.items() <= run.items() for run in runs):
                    continue
                try:
                    found = train(f"{setting}, {way}", [*JOB, *flags, *more])
                except RunFailed as error:
                    say(f"{setting}, {way}: {error}")
                    continue
                runs.append(key | _figures(found))
                keep_row(kept, runs[-1])
    return [
        _row(setting, way, runs) for setting, (_, fixed) in SETTINGS.items() for way in _ways(fixed)
    ]


def _ways(fixed: Sequence[int]) -> dict[str, Sequence[str]]:
    ways: dict[str, Sequence[str]] = {
        f"fixed at {count}": (f"--rollout.max_concurrent={count}",) for count in fixed
    }
    return ways | {ADAPTED: ("--rollout.concurrency=adaptive",)}


def _figures(found: Run) -> Row:
    later = found.steps[SETTLED:]
    return {
        "episodes_per_s": len(later) * _episodes(later[0]) / sum(s["time/step"] for s in later),
        "groups": sum(step[METRIC] for step in later) / len(later) if METRIC in later[0] else None,
        "staleness": sum(step["staleness/mean"] for step in later) / len(later),
    }


def _episodes(step: Mapping[str, Any]) -> float:
    return sum(value for key, value in step.items() if key.endswith("/episodes"))


def _row(setting: str, way: str, runs: Sequence[Row]) -> Row:
    of = [run for run in runs if (run["setting"], run["groups_at_once"]) == (setting, way)]
    row: Row = {"system": way, "setting": setting, "groups_at_once": way, "runs": len(of)}
    for key in ("episodes_per_s", "groups", "staleness"):
        found = [run[key] for run in of if run[key] is not None]
        row[key] = round(median(found), 2) if found else None
    return row


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
