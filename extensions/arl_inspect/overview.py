"""The summary of one run for the list of runs: state, curve, held-out reward, time left, notes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym_rl.core import ConfigError
from agentgym_rl.storage import evaluation_of
from agentgym_rl.storage.evaluations import LINES
from agentgym_rl.storage.run_folder import MARK, MODEL, shown
from agentgym_rl.storage.run_list import recent_reward

from .notes import Notes, notes_of
from .query import HttpError

MOST_POINTS = 60
"""The largest number of points of a small curve; each is the mean of neighbouring batches."""
_LIVING = (MARK, "metrics.jsonl", "phases.jsonl", "episodes.db", "episodes.db-wal", LINES)
_RECENT = 5
"""The number of last batches whose mean duration estimates the time left."""
Rows = Sequence[Mapping[str, Any]]
Read = Callable[[], tuple[Mapping[str, Any], Mapping[str, Rows], Mapping[str, Any]]]
"""The reader of a run's configuration, metrics and pulse (`folders.InspectedRun`)."""


def overview(id: str, folder: Path, read: Read) -> dict[str, Any]:
    """Return a run's entry in the list of runs; `error`: why a file cannot be read."""
    found: dict[str, Any] = {
        "id": id,
        "path": readable(shown(folder)),
        **{"env": "", "agent": "", "engine": "", "model": "", "seed": None, "kind": "train"},
        **{"status": "stopped", "steps": 0, "steps_planned": 0, "episodes": 0},
        **{"started_s": None, "updated_s": None, "duration_s": None, "left_s": None},
        **{"reward": None, "held_out": None, "held_out_before": None, "curve": [], "checks": []},
        **asdict(Notes()),
        **{"failure": "", "error": ""},
    }
    try:
        found |= asdict(notes_of(folder))
        config, metrics, pulse = read()
    except (ConfigError, HttpError, OSError) as error:  # the run may vanish meanwhile
        return found | {"error": str(error)}
    found |= {name: value for name, value in pulse.items() if name in found}
    found |= _what(config) | _times(folder, is_running=found["status"] == "running")
    if found["kind"] == "eval":
        return found | _evaluated(evaluation_of(folder))
    if found["kind"] == "serve":
        found["agent"] = ""  # programs of others play
    return found | _held_out(metrics["evaluations"]) | _trained(metrics, config, found)


def _trained(
    metrics: Mapping[str, Rows], config: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    planned, rows = _whole(config.get("steps")), metrics["rows"]
    return {
        "steps_planned": planned,
        "left_s": _left_s(metrics, config) if found["status"] == "running" else None,
        "reward": recent_reward(rows),
        "curve": small_curve(rows),
    }


def _evaluated(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reward of an evaluation (`arl eval --out`); it is held-out on held-out tasks."""
    reward = _number(result.get("reward"))
    if reward is None or result.get("split", "eval") != "eval":
        return {"reward": reward}
    low, high = result.get("reward_ci") or (None, None)
    return {
        "reward": reward,
        "held_out": {"version": None, "reward": reward, "low": low, "high": high},
    }


def readable(path: str) -> str:
    """Return a path as text; bytes in it that are not UTF-8 become question marks."""
    return os.fsencode(path).decode("utf-8", "replace")


def _what(config: Mapping[str, Any]) -> dict[str, Any]:
    def of(section: str, key: str) -> str:
        return str(config.get(section, {}).get(key, ""))

    return {
        "env": of("env", "id"),
        "agent": of("agent", "id"),
        "engine": of("engine", "type"),
        "model": of("model", "path"),
        "seed": config.get("seed"),
    }


def _times(folder: Path, *, is_running: bool) -> dict[str, float | None]:
    """Return when the run began and was last written, and the time between; a running run lasts
    until now."""
    # A resume rewrites the configuration, but not the digests of the initial model.
    first = (changed_s(folder / MARK), changed_s(folder / MODEL))
    began = min((at for at in first if at is not None), default=None)
    known = [at for name in _LIVING if (at := changed_s(folder / name)) is not None]
    updated = max(known, default=None)
    end = time.time() if is_running else updated
    duration = None if began is None or end is None else max(end - began, 0.0)
    return {"started_s": began, "updated_s": updated, "duration_s": duration}


def changed_s(path: Path) -> float | None:
    """Return the time of the last change of a file, in seconds since 1970; None without a file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _held_out(evaluations: Rows) -> dict[str, Any]:
    """Return the newest held-out reward with its interval, that before training, and all for the
    small curve."""
    known = [it for it in evaluations if _number(it.get("eval/reward")) is not None]
    trained = [it for it in known if it.get("version")]
    before = next((it["eval/reward"] for it in known if it.get("version") == 0), None)
    newest = (trained or known)[-1] if known else None
    return {
        "held_out_before": before,
        "held_out": newest
        and {
            "version": newest.get("version"),
            "reward": newest["eval/reward"],
            "low": _number(newest.get("eval/reward_low")),
            "high": _number(newest.get("eval/reward_high")),
        },
        "checks": [[it.get("version"), it["eval/reward"]] for it in known],
    }


def _left_s(metrics: Mapping[str, Rows], config: Mapping[str, Any]) -> float | None:
    """Return the estimated time until the end: the number of batches left times the mean duration
    of the last ones, and the evaluation after training, which lasts as long as the newest one.
    Evaluations on schedule are played while batches are trained."""
    rows, planned = metrics["rows"], _whole(config.get("steps"))
    recent = [
        value for value in (_number(row.get("time/step")) for row in rows[-_RECENT:]) if value
    ]
    played = [it for it in metrics["evaluations"] if _number(it.get("eval/duration_s"))]
    is_over = any(it.get("version") and it.get("step") == planned - 1 for it in played)
    if not recent or (planned <= len(rows) and (is_over or not played)):
        return None
    after = played[-1]["eval/duration_s"] if played and not is_over else 0.0
    return max(planned - len(rows), 0) * sum(recent) / len(recent) + after


def small_curve(rows: Rows, *, most: int = MOST_POINTS) -> list[list[float]]:
    """Return batch and reward of at most `most` points; neighbouring batches are averaged."""
    known = [
        (float(step), reward)
        for row in rows
        if (step := _number(row.get("step"))) is not None
        and (reward := _number(row.get("reward/mean"))) is not None
    ]
    size = -(-len(known) // most) or 1
    parts = [known[at : at + size] for at in range(0, len(known), size)]
    return [[_mean(step for step, _ in part), _mean(it for _, it in part)] for part in parts]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
