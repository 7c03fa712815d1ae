"""How old may episodes be, and what keeps old ones from doing harm?

The main job with every bound η on staleness and every way to correct for it, over three seeds, with
a constant learning rate: its decay, the default, hides what old episodes do late in a run. "naive"
is PPO against the policy that sampled; "decoupled" the default; the guards are two things that may
bound how far old episodes carry a policy; "decoupled, decaying" is the default, decay included.

A sweep takes an hour. With ARL_BENCH_ROWS=FILE it keeps each row in that file and, begun again,
goes on where it was; ARL_BENCH_PLOT=FILE is where the picture goes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._common import hardware, say, versions
from ._kept import read_rows, rows_file
from ._runs import RunFailed, train

BOUNDS = (0, 2, 8, 16)
SEEDS = (1, 2, 3)
_CONSTANT = "--trainer.schedule=constant"
VARIANTS: Mapping[str, Sequence[str]] = {
    "naive": (_CONSTANT, "--algo.naive=true"),
    "decoupled": (_CONSTANT,),
    "decoupled + dppo": (_CONSTANT, "--algo.loss=dppo"),
    "decoupled + sequence_mask": (
        _CONSTANT,
        "--algo.behavior_correction.type=sequence_mask",
        "--algo.behavior_correction.low=0.5",
        "--algo.behavior_correction.high=2",
    ),
    "decoupled, decaying": (),
}
"""Flags of each."""
GOAL = "none: it is a survey. `met` says whether every run came to its end"
_JOB = ("--env=math", "--agent=react", "--eval.num_tasks=256", "--logging.plot=false")
_SMOOTH = 5
"""Steps whose mean reward is one point of a curve."""

Row = dict[str, Any]


def run(
    *,
    bounds: Sequence[int] = BOUNDS,
    variants: Iterable[str] = VARIANTS,
    seeds: Sequence[int] = SEEDS,
    extra: Sequence[str] = (),
) -> dict[str, Any]:
    """The sweep; `extra` are more flags of `arl train`, given to every run."""
    kept = rows_file()
    rows = read_rows(kept)
    done = {(row["variant"], row["bound"], row["seed"]) for row in rows}
    wanted = [(v, bound, seed) for seed in seeds for bound in bounds for v in variants]
    for number, (variant, bound, seed) in enumerate(wanted):
        if (variant, bound, seed) in done:
            continue
        say(f"run {number + 1} of {len(wanted)}")
        row = _measure(variant, bound, seed, extra)
        rows.append(row)
        if kept:
            with kept.open("a") as file:
                file.write(json.dumps(row) + "\n")
    rows = [row for row in rows if (row["variant"], row["bound"], row["seed"]) in wanted]
    if os.environ.get("ARL_BENCH_PLOT"):
        plot(rows, Path(os.environ["ARL_BENCH_PLOT"]))
    return {
        "name": "staleness",
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
        "ratios": {},
        "table": table(rows),
        "goal": GOAL,
        "met": all("error" not in row for row in rows),
    }


def table(rows: Sequence[Row]) -> list[Row]:
    """Over the seeds of each variant and bound: means, and the spread of what counts."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if "error" not in row:
            found.setdefault((row["variant"], row["bound"]), []).append(row)
    return [
        {
            "variant": variant,
            "bound": bound,
            "seeds": len(of),
            "eval_after": _mean(of, "eval_after"),
            "worst": min(row["eval_after"] for row in of),
            "best_training_reward": _mean(of, "best_training_reward"),
            "last_training_reward": _mean(of, "last_training_reward"),
            "staleness": _mean(of, "staleness_mean"),
            "prob_error": _mean(of, "prob_error"),
            "seconds": _mean(of, "train_s"),
        }
        for (variant, bound), of in sorted(
            found.items(), key=lambda it: (list(VARIANTS).index(it[0][0]), it[0][1])
        )
    ]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Training reward over steps, a panel for each bound; bands are from worst to best seed."""
    from matplotlib.figure import Figure

    good = [row for row in rows if "error" not in row]
    bounds = sorted({row["bound"] for row in good})
    figure = Figure(figsize=(4 * max(1, len(bounds)), 3.8), layout="constrained")
    panels = figure.subplots(1, max(1, len(bounds)), sharey=True, squeeze=False)[0]
    for panel, bound in zip(panels, bounds, strict=False):
        for number, variant in enumerate(VARIANTS):
            curves = [
                _smoothed(row["rewards"])
                for row in good
                if (row["variant"], row["bound"]) == (variant, bound)
            ]
            if not curves:
                continue
            over = list(zip(*curves, strict=False))
            steps = range(_SMOOTH - 1, _SMOOTH - 1 + len(over))
            panel.plot(steps, [statistics.mean(at) for at in over], f"C{number}", label=variant)
            panel.fill_between(
                steps,
                [min(at) for at in over],
                [max(at) for at in over],
                color=f"C{number}",
                alpha=0.1,
            )
        panel.set(title=f"max_staleness = {bound}", xlabel="training batch", ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0].set(ylabel=f"training reward, mean of {_SMOOTH} batches")
    panels[-1].legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=110)


def _measure(variant: str, bound: int, seed: int, extra: Sequence[str]) -> Row:
    row: Row = {"variant": variant, "bound": bound, "seed": seed}
    flags = [*_JOB, f"--seed={seed}", f"--rollout.max_staleness={bound}", *VARIANTS[variant]]
    try:
        run = train(f"{variant}, η = {bound}, seed {seed}", [*flags, *extra])
    except RunFailed as error:
        return row | {"error": str(error)}
    rewards = [step["reward/mean"] for step in run.steps]
    smoothed = _smoothed(rewards)
    row |= {
        "eval_before": round(run.result["eval_before"], 3),
        "eval_after": round(run.result["eval_after"], 3),
        "best_training_reward": round(max(smoothed), 3),
        "last_training_reward": round(smoothed[-1], 3),
        "staleness_mean": round(run.result["staleness_mean"], 2),
        "staleness_max": run.result["staleness_max"],
        "dropped": sum(run.result["groups_dropped"].values()),
        "prob_error": round(
            statistics.mean(step["mismatch/token_mult_prob_error"] for step in run.steps), 4
        ),
        "masked": round(
            statistics.mean(step["policy/behavior_weight_masked"] or 0.0 for step in run.steps), 5
        ),
        "train_s": round(run.result["duration_s"], 1),
        "rewards": [round(reward, 4) for reward in rewards],
    }
    say(f"{variant}, η = {bound}, seed {seed}: {row['eval_before']} -> {row['eval_after']}")
    return row


def _smoothed(rewards: Sequence[float]) -> list[float]:
    width = min(_SMOOTH, len(rewards))
    return [
        statistics.mean(rewards[i : i + width]) for i in range(max(0, len(rewards) - width + 1))
    ]


def _mean(rows: Sequence[Row], name: str) -> float:
    return round(statistics.mean(row[name] for row in rows), 3)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
