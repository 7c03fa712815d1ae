"""The main job as a user runs it, over three seeds, with its negative controls.

Every row is one `arl train --env math --agent react --json` in a process of its own and a run
folder that is removed afterwards; "seconds" are wall time from start to exit. Held-out reward is on
the same tasks before and after. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._common import hardware, say, versions
from ._runs import RunFailed, train
from ._toy import sized

SEEDS = sized((1, 2, 3), toy=(1,))
REACT = ("--env=math", "--agent=react")
CONTROLS: Mapping[str, Sequence[str]] = {
    "learning rate 0": (*REACT, "--trainer.learning_rate=0"),
    "shuffled advantages": (*REACT, "--algo.shuffle_advantages=true"),
    "single_turn": ("--env=math", "--agent=single_turn"),
}
"""The flags of each control, run with the first seed."""

GOAL = (
    "every seed from <= 0.45 to >= 0.90 within 120 s, staleness mean >= 0.5 and max <= 2, tool "
    "calls an episode >= 1.3; learning rate 0 changes by <= 0.06, shuffled advantages rise by "
    "<= 0.15, single_turn ends >= 0.3 below every seed"
)

Row = dict[str, Any]


def run(*, seeds: Sequence[int] = SEEDS, extra: Sequence[str] = ()) -> dict[str, Any]:
    """Train with every seed and every control; `met` is whether all goals hold.

    `extra` are more flags of `arl train`, given to every run.
    """
    main = [_measure(f"react, seed {seed}", seed, [*REACT, *extra]) for seed in seeds]
    controls = {
        name: _measure(name, seeds[0], [*flags, *extra]) for name, flags in CONTROLS.items()
    }
    checks = _checks(main, controls)
    for name, holds in checks.items():
        say(f"{'holds' if holds else 'FAILS'}: {name}")
    return {
        "name": "train",
        "hardware": hardware(),
        "versions": versions(),
        "rows": [*main, *controls.values()],
        "ratios": {},
        "goal": GOAL,
        "checks": checks,
        "met": all(checks.values()),
    }


def _measure(system: str, seed: int, flags: Sequence[str]) -> Row:
    """Return the row of one training run, which has `error` instead of figures if the run
    failed."""
    row: Row = {"system": system, "seed": seed}
    try:
        run = train(system, [f"--seed={seed}", *flags])
    except RunFailed as error:
        return row | {"error": str(error)}
    row |= _figures(run.result, run.seconds)
    say(f"{system}: {row['eval_before']} -> {row['eval_after']} in {row['seconds']} s")
    return row


def _figures(result: Mapping[str, Any], seconds: float) -> Row:
    def rounded(name: str) -> float | None:
        return None if result[name] is None else round(result[name], 3)

    return {
        "eval_before": rounded("eval_before"),
        "eval_after": rounded("eval_after"),
        "seconds": round(seconds, 1),
        "steps": result["steps"],
        "staleness_mean": rounded("staleness_mean"),
        "staleness_max": result["staleness_max"],
        "groups_dropped": result["groups_dropped"],
        "overlap": rounded("overlap"),
        "tool_calls": rounded("tool_calls_after"),
    }


def _checks(main: Sequence[Row], controls: Mapping[str, Row]) -> dict[str, bool]:
    """Return the goals. A run that failed, or was not evaluated, meets none of its own."""

    def every(rows: Sequence[Row], holds: Callable[[Row], bool]) -> bool:
        return all(row.get("eval_after") is not None and holds(row) for row in rows)

    still, shuffled, single = ([controls[name]] for name in CONTROLS)
    worst = min((row.get("eval_after") or 0.0 for row in main), default=0.0)
    return {
        "every seed starts at <= 0.45": every(main, lambda r: r["eval_before"] <= 0.45),
        "every seed ends at >= 0.90": every(main, lambda r: r["eval_after"] >= 0.90),
        "every seed within 120 s": every(main, lambda r: r["seconds"] <= 120),
        "staleness mean >= 0.5": every(main, lambda r: r["staleness_mean"] >= 0.5),
        "staleness max <= 2": every(main, lambda r: r["staleness_max"] <= 2),
        "tool calls >= 1.3": every(main, lambda r: r["tool_calls"] >= 1.3),
        "learning rate 0 changes by <= 0.06": every(still, lambda r: abs(_rise(r)) <= 0.06),
        "shuffled advantages rise by <= 0.15": every(shuffled, lambda r: _rise(r) <= 0.15),
        "single_turn ends >= 0.3 below": every(single, lambda r: worst - r["eval_after"] >= 0.3),
    }


def _rise(row: Row) -> float:
    return row["eval_after"] - row["eval_before"]
