"""The effect of old episodes, and of corrections for them.

The survey is the main job with every bound η on staleness and every correction, over three seeds,
with a constant learning rate: the default decay hides the effect of old episodes late in a run.
"naive" is PPO against the policy that sampled; "decoupled" the default; the guards are two things
that may bound how far old episodes carry a policy; "decoupled, decaying" is the default, decay
included. ARL_BENCH_STUDY=causes looks for the cause of failures instead: each variant removes one
possible cause (_stale_losses.py), over five seeds.

A study takes an hour or two. With ARL_BENCH_ROWS=FILE it keeps each row in that file and, started
again, continues there; ARL_BENCH_PLOT=FILE is the file of the plot; ARL_BENCH_AT_ONCE=N starts N
concurrent runs, and ARL_BENCH_UNTIL_S=S starts none after S seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._common import hardware, say, versions
from ._kept import keep_row, plot_file, read_rows, rows_file
from ._runs import Run, RunFailed, train
from ._toy import sized

_CONSTANT = "--trainer.schedule=constant"
_PLAIN = "--algo.behavior_clip=1"
"""The flags of decoupled PPO as published, without our bound."""
_LOSSES = "--algo.loss=benchmarks._stale_losses"
GOAL = "none: it is a survey. `met` says whether every run came to its end"
_JOB = ("--env=math", "--agent=react", "--logging.plot=false")
_SMOOTH = 5
"""The number of steps whose mean reward is one point of a curve."""

Row = dict[str, Any]
Cell = tuple[str, int, int]
"""The variant, bound and seed of a run."""


@dataclass(frozen=True)
class Study:
    """The runs of one question."""

    variants: Mapping[str, Sequence[str]]
    """The flags of each variant."""
    bounds: Sequence[int]
    seeds: Sequence[int]
    num_tasks: int
    """The number of held-out tasks of an evaluation."""
    controls: frozenset[str] = frozenset()
    """The variants that also run with a bound of 0; empty: all of them."""

    def cells(self) -> list[Cell]:
        """Return the runs, a seed after the other, so that an interrupted study is balanced."""
        return [
            (variant, bound, seed)
            for seed in self.seeds
            for bound in self.bounds
            for variant in self.variants
            if bound or not self.controls or variant in self.controls
        ]


STUDIES = {
    "survey": Study(
        {
            "naive": (_CONSTANT, _PLAIN, "--algo.naive=true"),
            "decoupled": (_CONSTANT, _PLAIN),
            "decoupled + dppo": (_CONSTANT, "--algo.loss=dppo"),
            "decoupled + sequence_mask": (
                _CONSTANT,
                _PLAIN,
                "--algo.behavior_correction.type=sequence_mask",
                "--algo.behavior_correction.low=0.5",
                "--algo.behavior_correction.high=2",
            ),
            "decoupled, decaying": (_PLAIN,),
        },
        bounds=(0, 2, 8, 16),
        seeds=(1, 2, 3),
        num_tasks=256,
    ),
    "causes": Study(
        {
            "decoupled": (_CONSTANT, _PLAIN),
            "dppo": (_CONSTANT, "--algo.loss=dppo"),
            "bounded up": (_CONSTANT, f"{_LOSSES}:bounded_up"),
            "bounded down": (_CONSTANT, f"{_LOSSES}:bounded_down"),
            "clipped down": (_CONSTANT,),
            "only up": (_CONSTANT, f"{_LOSSES}:only_up"),
            "only down": (_CONSTANT, f"{_LOSSES}:only_down"),
            "weights of at most 1": (
                _CONSTANT,
                _PLAIN,
                "--algo.behavior_correction.type=clamp",
                "--algo.behavior_correction.cap=1",
            ),
            "no weights": (_CONSTANT, f"{_LOSSES}:unweighted"),
            "no momentum": (_CONSTANT, _PLAIN, "--trainer.betas=[0.0, 0.99]"),
            "long second moment": (_CONSTANT, _PLAIN, "--trainer.betas=[0.9, 0.999]"),
            "half the rate": (_CONSTANT, _PLAIN, "--trainer.learning_rate=1.5e-4"),
            "constant baseline .9": (
                _CONSTANT,
                _PLAIN,
                "--algo.baseline=none",
                "--algo.scale=none",
                "--algo.reward.bias=-0.9",
            ),
        },
        bounds=(0, 16),
        seeds=(1, 2, 3, 4, 5),
        num_tasks=1024,
        controls=frozenset({"decoupled", "only up", "only down", "no momentum"}),
    ),
    "remedies": Study(
        {
            "decoupled, decaying": (_PLAIN,),
            "dppo, decaying": ("--algo.loss=dppo",),
            "bounded down, decaying": (f"{_LOSSES}:bounded_down",),
            "clipped down, decaying": (),
        },
        bounds=(0, 16),
        seeds=(1, 2, 3, 4, 5),
        num_tasks=1024,
    ),
}


def run(
    *,
    study: str = "",
    bounds: Sequence[int] = sized((), toy=(2,)),
    variants: Sequence[str] = (),
    seeds: Sequence[int] = sized((), toy=(1,)),
    extra: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a study, or the part of it that is named; `extra` are more flags of every run."""
    asked = STUDIES[study or os.environ.get("ARL_BENCH_STUDY", "survey")]
    kept = rows_file()
    rows = read_rows(kept)
    done = {_cell(row) for row in rows}
    wanted = [
        (variant, bound, seed)
        for variant, bound, seed in asked.cells()
        if (not variants or variant in variants)
        and (not bounds or bound in bounds)
        and (not seeds or seed in seeds)
    ]
    writing = threading.Lock()
    end = time.monotonic() + float(os.environ.get("ARL_BENCH_UNTIL_S", "inf"))

    def measure(cell: Cell) -> None:
        if time.monotonic() > end:
            return
        row = _measure(asked, cell, extra)
        with writing:
            rows.append(row)
            keep_row(kept, row)

    with ThreadPoolExecutor(int(os.environ.get("ARL_BENCH_AT_ONCE", "1"))) as runs:
        list(runs.map(measure, [cell for cell in wanted if cell not in done]))
    rows = [row for row in rows if _cell(row) in wanted]
    if picture := plot_file():
        draw = plot if asked is STUDIES["survey"] else plot_ends
        draw(rows, picture)
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


_VARIANTS = list(dict.fromkeys(name for study in STUDIES.values() for name in study.variants))


def _cell(row: Row) -> Cell:
    return row["variant"], row["bound"], row["seed"]


def table(rows: Sequence[Row]) -> list[Row]:
    """Return, over the seeds of each variant and bound, means and the spread of the rewards."""
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
            found.items(), key=lambda it: (_VARIANTS.index(it[0][0]), it[0][1])
        )
    ]


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the training reward over steps, a panel for each bound; bands are from worst to best
    seed."""
    from matplotlib.figure import Figure

    good = [row for row in rows if "error" not in row]
    bounds = sorted({row["bound"] for row in good})
    shown = sorted({row["variant"] for row in good}, key=_VARIANTS.index)
    figure = Figure(figsize=(4 * max(1, len(bounds)), 3.8), layout="constrained")
    panels = figure.subplots(1, max(1, len(bounds)), sharey=True, squeeze=False)[0]
    for panel, bound in zip(panels, bounds, strict=False):
        for number, variant in enumerate(shown):
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


def plot_ends(rows: Sequence[Row], path: Path) -> None:
    """Draw the held-out reward at the end of each run: a line for each variant, a dot for each
    seed, a color for each bound."""
    from matplotlib.figure import Figure

    good = [row for row in rows if "error" not in row]
    shown = sorted({row["variant"] for row in good}, key=_VARIANTS.index, reverse=True)
    figure = Figure(figsize=(8, 0.6 + 0.34 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for number, bound in enumerate(sorted({row["bound"] for row in good})):
        its = [row for row in good if row["bound"] == bound]
        lines = [shown.index(row["variant"]) + 0.16 * (1 - 2 * number) for row in its]
        ends = [row["eval_after"] for row in its]
        axes.plot(ends, lines, f"C{number}o", alpha=0.7, label=f"max_staleness = {bound}")
    axes.set(xlabel="held-out reward at the end, a dot for each run", xlim=(-0.02, 1))
    axes.set_yticks(range(len(shown)), shown)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=110)


def _measure(study: Study, cell: Cell, extra: Sequence[str]) -> Row:
    variant, bound, seed = cell
    row: Row = {"variant": variant, "bound": bound, "seed": seed}
    flags = [*_JOB, f"--eval.num_tasks={study.num_tasks}", f"--seed={seed}"]
    flags += [f"--rollout.max_staleness={bound}", *study.variants[variant], *extra]
    try:
        run = train(f"{variant}, η = {bound}, seed {seed}", flags)
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
        "prob_error": _mean_of(run, "mismatch/token_mult_prob_error", 1.0),
        "masked": _mean_of(run, "policy/behavior_weight_masked", 0.0),
        "train_s": round(run.result["duration_s"], 1),
        "entropy": [round(step.get("policy/approx_entropy") or 0.0, 4) for step in run.steps],
        "rewards": [round(reward, 4) for reward in rewards],
    }
    say(f"{variant}, η = {bound}, seed {seed}: {row['eval_before']} -> {row['eval_after']}")
    return row


def _mean_of(run: Run, name: str, absent: float) -> float:
    """Return the mean of a metric, which a batch of equal rewards does not have."""
    found = [step.get(name) for step in run.steps]
    return round(statistics.mean(absent if value is None else value for value in found), 5)


def _smoothed(rewards: Sequence[float]) -> list[float]:
    width = min(_SMOOTH, len(rewards))
    return [
        statistics.mean(rewards[i : i + width]) for i in range(max(0, len(rewards) - width + 1))
    ]


def _mean(rows: Sequence[Row], name: str) -> float:
    return round(statistics.mean(row[name] for row in rows), 3)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
