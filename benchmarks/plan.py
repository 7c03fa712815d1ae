"""How well does `arl plan` predict?

Three parts. "paper": the AReaL paper's setting, simulated, beside the paper's own ratios. "runs":
real runs on this machine. One is made and calibrated on; what others will do is then written to
a file; then they are made, and compared. "vllm": the same on a vLLM server, if `make test-vllm`
has installed it.

ARL_BENCH_PART=paper, runs or vllm does one part. With ARL_BENCH_ROWS=FILE the rows of
finished runs are kept in that file and the predictions in FILE.PART.json: begun again, it predicts
nothing anew and goes on with the runs that are missing. The machine has to be otherwise idle.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym_rl.config import load_config
from agentgym_rl.plan.calibration import calibrate, read_run, shapes_of
from agentgym_rl.plan.rates import Rates
from agentgym_rl.plan.simulation import simulate

from ._common import VLLM_PYTHON, hardware, no_peer, say, versions
from ._kept import keep_row, read_rows, rows_file
from ._plan_paper import PAPER, paper_rows
from ._runs import Run, RunFailed, train
from ._toy import sized

GOAL = "every run's episodes per second within 15 % of what was predicted before it began"
WITHIN = 0.15
JOB = (
    "--env=math",
    "--agent=react",
    "--eval.num_tasks=0",
    "--logging.plot=false",
    f"--steps={sized(30, toy=16)}",
)
VLLM_JOB = (
    *JOB,
    "--engine.type=vllm",
    f"--engine.python={VLLM_PYTHON}",
    "--engine.max_model_len=512",
    "--engine.kv_cache_gib=1",
)
_SMALL = ("--rollout.groups_per_batch=4", "--rollout.group_size=2")
"""The size of a dry run: large enough to calibrate on."""
PARTS: Mapping[str, Sequence[str]] = {"runs": JOB, "vllm": VLLM_JOB}
RUNS: Mapping[str, Sequence[str]] = {
    "synchronous": ("--rollout.max_staleness=0",),
    "staleness 1": ("--rollout.max_staleness=1",),
    "staleness 4, 24 groups at once": (
        "--rollout.max_staleness=4",
        "--rollout.max_concurrent=24",
    ),
    "4 groups at once": ("--rollout.max_concurrent=4",),
    "batches of 4 groups": ("--rollout.groups_per_batch=4",),
    "groups of 4": ("--rollout.group_size=4",),
    "replies of 12 tokens": ("--rollout.max_tokens=12",),
    "1 minibatch": ("--trainer.num_minibatches=1",),
    "2 engines": ("--engine.num_servers=2",),
}
"""Flags of each, beside JOB: each differs from the calibrated run in one thing, or two."""
NAMES = sized(tuple(RUNS), toy=("staleness 1",))

Row = dict[str, Any]


def run() -> dict[str, Any]:
    """All parts, or the one that is asked for."""
    part = os.environ.get("ARL_BENCH_PART", sized("", toy="runs"))
    if part not in ("", "paper", *PARTS):
        raise SystemExit(f"ARL_BENCH_PART={part!r}: expected paper, {' or '.join(PARTS)}")
    rows: list[Row] = []
    ratios: dict[str, Any] = {}
    skipped: list[str] = []
    if part in ("", "paper"):
        rows, ratios = paper_rows()
    measured: list[Row] = []
    for name in (part,) if part in PARTS else PARTS if not part else ():
        if name == "vllm" and not VLLM_PYTHON:
            skipped.append(no_peer("vllm"))
        else:
            measured += compare(name)
    return {
        "name": "plan",
        "hardware": hardware(),
        "versions": versions(),
        "rows": [*rows, *measured],
        "skipped": skipped,
        "ratios": ratios,
        "paper": PAPER,
        "goal": GOAL,
        "met": bool(measured) and all(abs(row.get("error", 1.0)) <= WITHIN for row in measured),
    }


def compare(part: str, names: Sequence[str] = NAMES, *, cores: float | None = None) -> list[Row]:
    """A part with real runs: one row each."""
    job = PARTS[part]
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        kept = rows_file() or Path(scratch) / "rows.jsonl"
        cores = cores or float(os.cpu_count() or 1)
        predicted = _predictions(names, job, kept.with_name(f"{kept.name}.{part}.json"), cores)
        rows = [row for row in read_rows(kept) if row["part"] == part]
        done = {row["run"] for row in rows}
        for name in names:
            if name in done:
                continue
            row = {"part": part} | _row(name, predicted[name], job)
            rows.append(row)
            keep_row(kept, row)
    return [row for row in rows if row["run"] in names]


def _predictions(
    names: Sequence[str], job: Sequence[str], file: Path, cores: float
) -> Mapping[str, Mapping[str, float]]:
    """By run; those of the file, if it is there, whatever the machine is like today."""
    if file.exists():
        return json.loads(file.read_text())["runs"]
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
        folder = Path(scratch) / "run"
        train("calibration", job, folder=folder, small=_SMALL)
        recorded = read_run(folder)
        rates, itself = calibrate(folder, recorded, Rates(cores=cores))
        found: dict[str, Any] = {}
        for name in names:
            keys = [flag.removeprefix("--").split("=", 1) for flag in RUNS[name]]
            config = load_config(folder / "config.toml", dict(keys))
            prediction = simulate(config, rates, shapes_of(config, rates.lengths, recorded), skip=1)
            found[name] = {
                "episodes_per_s": prediction.episodes_per_s,
                "staleness_mean": prediction.staleness_mean,
                "overlap": prediction.overlap,
            }
            say(f"{name}: {prediction.episodes_per_s:.2f} episodes/s predicted")
    whole = {
        "calibration": {
            "measured": recorded.episodes_per_s,
            "simulated": itself.episodes_per_s,
            "rates": rates.model_dump(),
        },
        "runs": found,
    }
    file.write_text(json.dumps(whole, indent=2))
    return found


def _row(name: str, predicted: Mapping[str, float], job: Sequence[str]) -> Row:
    row: Row = {"run": name, "flags": list(RUNS[name])}
    row["predicted_episodes_per_s"] = round(predicted["episodes_per_s"], 2)
    row["predicted_staleness"] = round(predicted["staleness_mean"], 2)
    try:
        found = train(name, [*job, *RUNS[name]], small=_SMALL)
    except RunFailed as error:
        return row | {"failed": str(error)}
    measured = episodes_per_s(found)
    row["episodes_per_s"] = round(measured, 2)
    row["staleness"] = round(
        sum(step["staleness/mean"] for step in found.steps[1:]) / len(found.steps[1:]), 2
    )
    row["error"] = round(predicted["episodes_per_s"] / measured - 1, 3)
    say(f"{name}: {measured:.2f} episodes/s, predicted {row['error']:+.1%} off")
    return row


def episodes_per_s(found: Run) -> float:
    """Trained ones, after the first batch."""
    later = found.steps[1:]
    episodes = sum(
        value for step in later for key, value in step.items() if key.endswith("/episodes")
    )
    return episodes / sum(step["time/step"] for step in later)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
