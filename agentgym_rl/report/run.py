"""The summary that `arl train` prints at the end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from .evaluation import evaluation_lines
from .figures import counts, figures, judge_lines, pace_lines, trained_lines


def training_text(result: Mapping[str, Any]) -> str:
    """Return the summary of a finished run; `result` is the object that `--json` prints."""
    rewards = (result["eval_before"], result["eval_after"])
    before, after = ("-" if reward is None else f"{reward:.3f}" for reward in rewards)
    evaluated = rewards != (None, None)
    dropped = dict(result["groups_dropped"])
    causes = f" ({counts(dropped)})" if dropped.keys() - {"stale"} else ""
    outcomes = dict(result["eval_outcomes"])
    too_long = outcomes.pop("too_long", 0)
    failed = {k: n for k, n in outcomes.items() if k not in ("completed", "truncated")}
    lines = ["", *(figures("held-out reward", f"{before} → {after}") if evaluated else ())]
    lines += [*evaluation_lines(result), *trained_lines(result["envs"])]
    if failed:
        lines += figures("", f"left out, as they failed: {counts(failed)}")
    if too_long:
        lines += figures("", f"too long to be played: {too_long:,} of all evaluations' episodes")
    steps, taught = result["steps"], result["batches_taught"]
    some = f", {taught:,} of which taught something" if taught < steps else ""
    batches = f"{steps:,} batch{'es' * (steps != 1)}{some}"
    seconds, before = f"{result['duration_s']:.0f} s", result["resumed_from"]
    now = "" if before is None else f"{steps - before:,} of them since the resume, in {seconds}"
    lines += figures("training", f"{batches}; {now or f'{seconds} in all'}")
    lines += figures(
        "overlap", f"{result['overlap']:.0%} of tokens sampled while the trainer computed"
    )
    lines += figures(
        "staleness",
        f"mean {result['staleness_mean']:.2f}, max {result['staleness_max']:.0f} versions; "
        f"groups dropped: {sum(dropped.values()):,}{causes}",
    )
    lines += pace_lines({**result, "episodes": result["num_episodes"]})
    lines += judge_lines(result)
    lines += figures("run folder", result["run"])
    lines += figures("", "reward.png metrics.jsonl episodes.db checkpoints/ export/")
    run = shlex.quote(str(result["run"]))
    return "\n".join([*lines, "", f"next: arl inspect {run}"])
