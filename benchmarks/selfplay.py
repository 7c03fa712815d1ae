"""The effect of self-play: tic-tac-toe with a model that mostly moves at random.

The bundled model plays both seats against itself: from the empty board, with a learning rate of 0
as the control, or from many positions; or it plays its past versions. It never meets the opponents
of the measure: a random player, and an oracle of whose moves one in five is random; 1,024 held-out
games each, from the empty board, with the seat of the task. Intermediate versions play each other
for their ratings. With ARL_BENCH_ROWS=FILE each row is kept in that file, and the benchmark
continues there; ARL_BENCH_PLOT=FILE is the file of the plot.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ._common import hardware, say, versions
from ._kept import keep_row, plot_file, read_rows, rows_file
from ._runs import RunFailed, evaluate, train
from ._toy import sized

STEPS, EVERY = sized((40, 10), toy=(4, 2))
"""The batches of a run, and those between two versions that are measured."""
_GAME = ("--env=tictactoe", "--env.options.seat=any", "--eval.success_reward=0")
_BOTH = ("--rollout.seats.x=policy", "--rollout.seats.o=policy")
_LEAGUE = (
    *("--rollout.seats.x=policy", "--rollout.seats.o=league", "--rollout.rotate_seats=true"),
    "--weights.keep_versions=all",
)
_TRAINED = ("--rollout.groups_per_batch=32", "--trainer.learning_rate=6e-4")
VARIANTS: Mapping[str, Sequence[str]] = {
    "self-play": _BOTH,
    "learning rate 0": (*_BOTH, "--trainer.learning_rate=0"),
    "many positions": (*_BOTH, "--env.options.openings=6"),
    "league": _LEAGUE,
}
"""The flags of each variant."""
SEEDS: Mapping[str, Sequence[int]] = {"self-play": sized((1, 2, 3), toy=(1,))}
"""The seeds of each variant; the others have only the first one."""
OPPONENTS = ("random", "erring")
MEASURED = range(0, STEPS + 1, EVERY)
GAMES = 1024
"""The held-out games of the first version and of the last; a quarter for those between."""
GOAL = (
    "self-play from <= 0.5 to >= 0.90 of 1,024 games not lost against the erring oracle; learning "
    "rate 0 changes by <= 0.05"
)

Row = dict[str, Any]


def run(
    *,
    variants: Sequence[str] = sized(tuple(VARIANTS), toy=("self-play",)),
    extra: Sequence[str] = (),
) -> dict[str, Any]:
    """Train each variant with its seeds; `extra` are more flags of `arl train` and `arl eval`."""
    kept = rows_file()
    rows = read_rows(kept)
    done = {(row["system"], row["seed"]) for row in rows}
    wanted = [(variant, seed) for variant in variants for seed in SEEDS.get(variant, (1,))]
    for variant, seed in (cell for cell in wanted if cell not in done):
        row = _measure(variant, seed, extra)
        rows.append(row)
        keep_row(kept, row)
    if picture := plot_file():
        plot(rows, picture)
    return {
        "name": "selfplay",
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
        "ratios": {},
        "goal": GOAL,
        "met": _met(rows),
    }


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the share of games not lost over steps, a panel for each opponent."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, len(OPPONENTS), sharey=True)
    for panel, opponent in zip(panels, OPPONENTS, strict=True):
        for row in (row for row in rows if "error" not in row):
            color = f"C{list(VARIANTS).index(row['system'])}"
            label = row["system"] if row["seed"] == 1 else None
            shares = [share for share, _ in row[opponent]]
            panel.plot(MEASURED, shares, color, label=label, marker=".")
        panel.set(title=f"against the {opponent} player", xlabel="training batch", ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="share of held-out games not lost")
    panels[0].legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=110)


def _measure(variant: str, seed: int, extra: Sequence[str]) -> Row:
    row: Row = {"system": variant, "seed": seed}
    flags = (*_GAME, f"--seed={seed}", *extra)
    saved = (f"--trainer.checkpoint_every={EVERY}", f"--trainer.keep_checkpoints={STEPS // EVERY}")
    more = (f"--steps={STEPS}", "--eval.num_tasks=0", *saved)
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        folder = Path(scratch) / "run"
        try:
            done = train(variant, [*flags, *_TRAINED, *VARIANTS[variant], *more], folder=folder)
            row |= {"seconds": round(done.seconds, 1), "steps": done.result["steps"]}
            entropy = [step.get("policy/approx_entropy") or 0.0 for step in done.steps]
            row |= {"entropy": [round(value, 3) for value in entropy]}
            for opponent in OPPONENTS:
                row[opponent] = [_score(step, opponent, folder, flags) for step in MEASURED]
            row["elo"] = _ratings(folder, flags)
        except (RunFailed, subprocess.CalledProcessError) as error:
            return row | {"error": str(error)}
    for opponent in OPPONENTS:
        before, *_, after = row[opponent]
        row |= {f"{opponent}_before": before[0], f"{opponent}_after": after[0]}
    say(f"{variant}: {row['erring_before']} -> {row['erring_after']} of the games not lost")
    return row


def _score(step: int, opponent: str, run: Path, flags: Sequence[str]) -> tuple[float, float]:
    """The share of games that the version after a step does not lose, and its mean reward."""
    games = GAMES if step in (0, STEPS) else GAMES // 4
    against = (f"--env.options.opponent={opponent}", f"--eval.num_tasks={games}")
    found = evaluate(*flags, *against, f"--model={_version(step, run)}")
    return round(found["pass_at"]["1"]["value"], 3), round(found["reward"], 3)


def _version(step: int, run: Path) -> Path | str:
    return run / "checkpoints" / f"step-{step}" if step else "bundled"


def _ratings(folder: Path, flags: Sequence[str]) -> dict[str, Any]:
    """The ratings of the version half-way and of the last one, relative to the first."""
    places = (0, STEPS // 2, STEPS)
    models = [f"--model={_version(step, folder)}" for step in places]
    found = evaluate(*flags, "--eval.num_tasks=128", "--round-robin", *models)
    return {
        str(version): [round(x) for x in (one["elo"], *(one["ci"] or (0, 0)))]
        for version, one in zip(places, found["models"], strict=True)
    }


def _met(rows: Sequence[Row]) -> bool:
    good = all("error" not in row for row in rows)
    taught = [row for row in rows if row["system"] == "self-play"]
    still = [row for row in rows if row["system"] == "learning rate 0"]
    return (
        good
        and all(row["erring_before"] <= 0.5 and row["erring_after"] >= 0.9 for row in taught)
        and all(abs(row["erring_after"] - row["erring_before"]) <= 0.05 for row in still)
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
