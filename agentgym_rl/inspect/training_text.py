"""What `arl train` says in the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .env_text import trained_lines
from .evaluations_text import evaluation_lines
from .pace_text import pace_lines


def training_text(result: Mapping[str, Any]) -> str:
    """The summary of a finished run; `result` is what `--json` prints."""
    before, after = (
        "-" if value is None else f"{value:.3f}"
        for value in (result["eval_before"], result["eval_after"])
    )
    dropped = sum(result["groups_dropped"].values())
    told = result["groups_dropped"].keys() - {"stale"}
    causes = f" {dict(result['groups_dropped'])}" if told else ""
    outcomes = dict(result["eval_outcomes"])
    too_long = outcomes.pop("too_long", 0)
    counted = ("completed", "truncated")
    failed = {k: n for k, n in outcomes.items() if k not in counted}
    return "\n".join(
        [
            "",
            f"held-out reward  {before} → {after}",
            *evaluation_lines(result),
            *trained_lines(result["envs"]),
            *([f"                 left out, as they failed: {failed}"] if failed else []),
            *([f"                 too long to be played: {too_long}"] if too_long else []),
            f"training         {result['steps']} batches; {result['duration_s']:.0f} s in all",
            f"overlap          {result['overlap']:.0%} of tokens sampled while the trainer "
            "computed",
            f"staleness        mean {result['staleness_mean']:.2f}, max "
            f"{result['staleness_max']:.0f} versions; groups dropped: {dropped}{causes}",
            *pace_lines(result),
            f"run folder       {result['run']}",
            "                 reward.png  metrics.jsonl  episodes.db  checkpoints/  export/",
            "",
            f"next: arl eval --run {result['run']} --eval.temperature=0",
        ]
    )
