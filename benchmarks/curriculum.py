"""Training with and without a curriculum on a mix of the four levels of math: the episodes to a
reward.

The bundled model can learn level 1 and none of the others, so three quarters of the tasks teach
nothing. Each of three seeds is trained on every task, and with `rollout.curriculum = "level"` on
fewer batches; both are evaluated on the same held-out tasks of all four levels. Six runs of a
minute or two each on idle cores; with ARL_BENCH_ROWS=FILE finished runs are kept in that file, and
an interrupted measurement continues; ARL_BENCH_PLOT=FILE is the file of the plot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._common import hardware, say, versions
from ._kept import keep_row, plot_file, read_rows, rows_file
from ._runs import Run, train
from ._toy import sized

SEEDS = sized((1, 2, 3), toy=(1,))
BATCHES, FEWER = 18, 12
"""The batches of a run without a curriculum, and with one."""
SHARE = 0.7
GOAL = f"the same held-out reward, or more, from at most {SHARE} of the episodes, for every seed"

_MEMBERS = ", ".join(
    f'{{id = "math", name = "level {level}", options = {{level = {level}}}}}'
    for level in (1, 2, 3, 4)
)
JOB = (
    *("--env=mix", f"--env.options.envs=[{_MEMBERS}]", "--agent=react", "--model=bundled/math"),
    *("--eval.num_tasks=384", "--logging.plot=false", "--rollout.turn_timeout_s=600"),
)
WAYS: dict[str, Sequence[str]] = {
    "every task": (f"--steps={BATCHES}",),
    "curriculum": (f"--steps={FEWER}", "--rollout.curriculum=level"),
}

Row = dict[str, Any]


def run() -> dict[str, Any]:
    """Run the benchmark: a row for each seed and way; `met` is whether each curriculum reached the
    reward."""
    rows = _rows()
    if picture := plot_file():
        plot(rows, picture)
    pairs = [[row for row in rows if row["seed"] == seed] for seed in SEEDS]
    ratios = {
        f"seed {plain['seed']}: episodes": round(chosen["episodes"] / plain["episodes"], 2)
        for plain, chosen in pairs
    }
    return {
        "name": "curriculum",
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
        "ratios": ratios,
        "goal": GOAL,
        "met": max(ratios.values()) <= SHARE
        and all(chosen["eval_after"] >= plain["eval_after"] for plain, chosen in pairs),
    }


def _rows() -> list[Row]:
    kept = rows_file()
    rows = read_rows(kept)
    for seed in SEEDS:
        for way, flags in WAYS.items():
            key = {"seed": seed, "system": way}
            if any(key.items() <= row.items() for row in rows):
                continue
            found = train(f"{way}, seed {seed}", [*JOB, *flags, f"--seed={seed}"])
            rows.append(key | _figures(found))
            say(f"{way}, seed {seed}: {rows[-1]}")
            keep_row(kept, rows[-1])
    return rows


def _figures(found: Run) -> Row:
    """Return the figures of a run; the episodes of dropped groups count, too."""
    equal = [step["reward/equal_groups"] for step in found.steps]
    return {
        "batches": len(found.steps),
        "episodes": sum(found.result["outcomes"].values()),
        "passed_over": found.steps[-1].get("rollout/passed_over") or 0,
        "equal_groups": round(sum(equal) / len(equal), 2),
        "eval_before": round(found.result["eval_before"], 3),
        "eval_after": round(found.result["eval_after"], 3),
    }


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw a line for each run, from no episodes to all of them, at the held-out rewards."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        color = f"C{list(WAYS).index(row['system'])}"
        label = row["system"] if row["seed"] == SEEDS[0] else None
        ends = [row["eval_before"], row["eval_after"]]
        axes.plot([0, row["episodes"]], ends, color, label=label, marker="o")
    axes.axhline(0.25, color="black", ls="--", label="every task of level 1, no other")
    axes.set(xlabel="episodes", ylabel="reward on 384 held-out tasks", ylim=(0, 0.3))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
