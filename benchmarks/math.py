"""The judgement of answers on our labelled set, compared with math-verify's defaults.

Every case of `tests/envs/math/labelled/` is a right answer (gold), a whole message, and whether the
message is right, by mathematical judgement. `hack` marks known reward hacks. math-verify is called
as by its users: `verify(parse(gold), parse(message))`, in a worker that is killed after ten
seconds, as are ours.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from arl_envs.math.judge import COMPARE, judge
from arl_verifier.pool import ProcessPool

from agentgym_rl.core import EnvError
from tests.envs.math.cases import Case, labelled

from ._common import hardware, versions
from ._toy import sized

PLAIN = "benchmarks._math_plain:judge"
NUM_WORKERS, TIMEOUT_S = 2, 10.0
GOALS = {"hack_fp": 0, "f1_beside_math_verify": 1.0}


@dataclass(frozen=True, slots=True)
class Judged:
    """A system's judgement of a case."""

    case: Case
    verdict: str
    ms: float


Judge = Callable[[Case, ProcessPool], Awaitable[str]]


def run() -> dict[str, Any]:
    """Run the benchmark; return the JSON object of `arl bench math --json`."""
    cases = labelled()[:: sized(1, toy=40)]
    ours, theirs = asyncio.run(_both(cases))
    rows = [
        row
        for name, judged in (("agentgym-rl", ours), ("math-verify", theirs))
        for row in (table_row(name, "all", judged), _hack_row(name, judged))
    ]
    whole, hacks, theirs_whole, _ = rows
    figures = {
        "hack_fp": hacks["fp"],
        "f1_beside_math_verify": round(whole["f1"] / theirs_whole["f1"], 3),
    }
    return {
        "name": "math",
        "hardware": hardware(),
        "versions": versions("math-verify", "sympy"),
        "rows": rows,
        "figures": figures,
        "goal": GOALS,
        "met": {
            "hack_fp": figures["hack_fp"] == 0,
            "f1_beside_math_verify": figures["f1_beside_math_verify"] > 1,
        },
    }


async def our_verdict(case: Case, pool: ProcessPool) -> str:
    """Return the verdict of the environment."""
    try:
        return (await judge(case.text, case.quiz, pool, timeout_s=TIMEOUT_S)).verdict
    except EnvError:
        return "gold"


async def math_verify_verdict(case: Case, pool: ProcessPool) -> str:
    """Return ok or wrong, by math-verify's defaults; or how it failed."""
    called = await pool.call(PLAIN, case.gold, case.text, timeout_s=TIMEOUT_S)
    return called.value if called.status == "done" else called.status


async def judge_all(cases: Sequence[Case], says: Judge, pool: ProcessPool) -> list[Judged]:
    """Judge one case at a time, so that times are per case."""
    judged = list[Judged]()
    for case in cases:
        began = time.perf_counter()
        verdict = await says(case, pool)
        judged.append(Judged(case, verdict, 1000 * (time.perf_counter() - began)))
    return judged


async def _both(cases: Sequence[Case]) -> tuple[list[Judged], list[Judged]]:
    async with ProcessPool(NUM_WORKERS, preload=(COMPARE, PLAIN)) as pool:
        ours = await judge_all(cases, our_verdict, pool)
        return ours, await judge_all(cases, math_verify_verdict, pool)


def _hack_row(name: str, judged: Iterable[Judged]) -> dict[str, Any]:
    return table_row(name, "hacks", [one for one in judged if one.case.hack])


def table_row(name: str, subset: str, judged: Sequence[Judged]) -> dict[str, Any]:
    """Return F1, precision and recall for finding right answers."""
    paid = [one for one in judged if one.verdict == "ok"]
    tp = sum(one.case.right for one in paid)
    fp, fn = len(paid) - tp, sum(one.case.right for one in judged) - tp
    return {
        "system": name,
        "subset": subset,
        "cases": len(judged),
        "f1": round(2 * tp / (2 * tp + fp + fn), 4) if tp else None,
        "precision": round(tp / len(paid), 4) if paid else None,
        "recall": round(tp / (tp + fn), 4) if tp + fn else None,
        "fp": fp,
        "fn": fn,
        "no_verdict": sum(one.verdict in ("timeout", "crash", "memory", "error") for one in judged),
        "ms_median": round(statistics.median(one.ms for one in judged), 3),
        "ms_p99": round(sorted(one.ms for one in judged)[int(0.99 * len(judged))], 1),
    }
