"""The number of steps in which a student becomes as good as its teacher, by distillation and by
rewards.

The teacher is a bigger tiny model with the same tokenizer, warmed up on right solutions only.
Students are the bundled model, with the teacher's log-probs of their own tokens and without any
reward (`algo.teacher.reward_coef` 0): as nothing is compared within a group, their 64 episodes of a
batch are of 64 tasks. The controls get only rewards, with the 8 x 8 episodes of the main job, for
twice as many steps, as in the main job, at a higher learning rate, and with more minibatches. All
are evaluated every few steps.

It takes an hour, ten minutes of it for the teacher; ARL_BENCH_TEACHER=FOLDER is one that was made
before. With ARL_BENCH_ROWS=FILE it keeps each row in that file and, started again, continues there;
ARL_BENCH_PLOT=FILE is the file of the plot.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ._common import hardware, say, versions
from ._kept import ROOT, keep_row, plot_file, read_rows, rows_file
from ._runs import RunFailed, evaluate, train
from ._toy import sized

SEEDS = sized((1, 2, 3), toy=(1,))
STEPS, EVERY = 40, 5
"""The steps of the controls, twice those of the students; and the steps between evaluations."""
NO_REWARD = "--algo.teacher.reward_coef=0"
STUDENT = (NO_REWARD, "--rollout.group_size=1", "--rollout.groups_per_batch=64")
TOP = ("--algo.teacher.placement=loss", "--algo.teacher.top_k=64")
MORE = "--trainer.num_minibatches=8"
"""The flags for twice the optimizer steps of the default."""
WAYS: Mapping[str, Sequence[str]] = {
    "rewards": (),
    "rewards, 1e-3": ("--trainer.learning_rate=1e-3",),
    "rewards, 8 minibatches": (MORE,),
    "teacher, 64 likeliest": (*STUDENT, *TOP, MORE, "--trainer.learning_rate=2e-3"),
}
"""The flags of each way; those with a teacher also get its folder."""
MAKE = (
    *("scripts/tiny_model/make.py", "--family=math", "--tokenizer=agentgym_rl/models/tiny"),
    *("--hidden=192", "--heads=6", "--feed-forward=576"),
    *(f"--clean-steps={sized(600, toy=2)}", "--mixed-steps=0", "--tasks=0"),
)
"""The command that makes the teacher: twice the bundled model's parameters."""
TOLERANCE = 0.02
GOAL = (
    f"for every seed, the student of the 64 likeliest tokens reaches the teacher's held-out reward "
    f"(less {TOLERANCE}) in at most half the steps of the fastest control"
)
JOB = ("--env=math", "--agent=react", "--eval.num_tasks=512", "--logging.plot=false")

Row = dict[str, Any]


def run(*, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Run the benchmark: a row for the teacher and each way; `met` is whether the goal was
    reached."""
    kept = rows_file()
    runs = read_rows(kept)
    done = {(row["seed"], row["way"]) for row in runs}
    missing = [(seed, way) for seed in seeds for way in WAYS if (seed, way) not in done]
    if missing:
        with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
            runs += _played(missing, _teacher(Path(scratch)), kept)
    if runs and (picture := plot_file()):
        plot(runs, picture)
    teacher = mean(row["teacher"] for row in runs) if runs else None
    return {
        "name": "distill",
        "hardware": hardware(),
        "versions": versions(),
        "rows": [
            {"system": "the teacher", "after": teacher},
            *(_row(way, [row for row in runs if row["way"] == way]) for way in WAYS),
        ],
        "goal": GOAL,
        "met": all(_met([row for row in runs if row["seed"] == seed]) for seed in seeds),
    }


def _teacher(scratch: Path) -> Path:
    if known := os.environ.get("ARL_BENCH_TEACHER"):
        return Path(known)
    say("the teacher: " + " ".join(MAKE))
    folder = scratch / "teacher"
    subprocess.run(
        [sys.executable, *MAKE, f"--out={folder}"], cwd=ROOT, check=True, stdout=sys.stderr
    )
    return folder


def _played(missing: Sequence[tuple[int, str]], teacher: Path, kept: Path | None) -> list[Row]:
    """Yield the missing runs, each written to the file `kept` as it ends."""
    reward = evaluate(*JOB, f"--model={teacher}")["reward"]
    found: list[Row] = []
    for seed, way in missing:
        teaches = NO_REWARD in WAYS[way]
        steps = STEPS // 2 if teaches else STEPS
        flags = [*JOB, *WAYS[way], f"--seed={seed}", f"--steps={steps}", f"--eval.every={EVERY}"]
        if teaches:
            flags.append(f"--algo.teacher.models={teacher}")
        try:
            found.append({"way": way, "seed": seed, "teacher": reward, **_curve(way, seed, flags)})
        except RunFailed as error:
            say(f"{way}, seed {seed}: {error}")
            continue
        keep_row(kept, found[-1])
    return found


def _curve(way: str, seed: int, flags: Sequence[str]) -> Row:
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        folder = Path(scratch) / "run"
        played = train(f"{way}, seed {seed}", flags, folder=folder)
        lines = (folder / "evaluations.jsonl").read_text().splitlines()
    rewards = {line["version"]: line["eval/reward"] for line in map(json.loads, lines)}
    return {
        "curve": [[version, round(rewards[version], 3)] for version in sorted(rewards)],
        "seconds": round(played.seconds, 1),
        "kl": played.steps[-1].get("teacher/kl"),
    }


def _needed(row: Row) -> float:
    """Return the steps after which an evaluation had the teacher's reward; inf: no evaluation had
    it."""
    enough = row["teacher"] - TOLERANCE
    return next((version for version, reward in row["curve"] if reward >= enough), math.inf)


def _row(way: str, its: Sequence[Row]) -> Row:
    if not its:
        return {"system": way, "seeds": 0}
    after = [row["curve"][-1][1] for row in its]
    needed = ["more" if _needed(row) == math.inf else str(_needed(row)) for row in its]
    kl = [row["kl"] for row in its if row["kl"] is not None]
    return {
        "system": way,
        "steps": its[0]["curve"][-1][0],
        "seeds": len(its),
        "before": round(mean(row["curve"][0][1] for row in its), 3),
        "after": round(mean(after), 3),
        "worst": round(min(after), 3),
        "needed": ", ".join(needed),
        "last_teacher_kl": round(mean(kl), 4) if kl else None,
    }


def _met(rows: Sequence[Row]) -> bool:
    needed = {row["way"]: _needed(row) for row in rows}
    *controls, student = WAYS
    if needed.keys() < WAYS.keys():
        return False
    return needed[student] <= min(STEPS, *(needed[way] for way in controls)) / 2


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the held-out reward over steps, a line for each seed, a color for each way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, way in enumerate(WAYS):
        for row in (row for row in rows if row["way"] == way):
            label = way if row["seed"] == min(SEEDS) else None
            axes.plot(*zip(*row["curve"], strict=True), f"C{number}", label=label)
    axes.axhline(mean(row["teacher"] for row in rows), color="black", ls="--", label="the teacher")
    axes.set(xlabel="training batch", ylabel="reward on 512 held-out tasks", ylim=(0.2, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
