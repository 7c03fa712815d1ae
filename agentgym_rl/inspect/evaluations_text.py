"""The evaluations of a run as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.eval_records import EvalRecord

from .figures import figures

UNKNOWN = "interval unknown: one task"


def eval_line(record: EvalRecord) -> str:
    """A record that came to its end."""
    return f"version {record.version}: {_outcome(record.line(), 'held-out reward ')}"


def evaluation_lines(result: Mapping[str, Any]) -> list[str]:
    """Of a finished run: evaluations between its first and its last one, and the best checkpoint;
    `result` is what `arl train --json` prints."""
    lines = _intervals(result)
    for line in result["evaluations"]:
        if 0 < line["version"] < result["steps"]:
            lines += figures(f"  version {line['version']}", _outcome(line, ""))
    if best := result["best"]:
        said = f"{best['checkpoint']} ({best['metric']} {best['value']:.3f})"
        lines += figures("best checkpoint", said)
        lines += figures("", f"arl export --model {best['checkpoint']} --out FOLDER")
    return lines


def _intervals(result: Mapping[str, Any]) -> list[str]:
    """Of the first and the last evaluation, which stand above this as bare numbers."""
    done = {line["version"]: line for line in result["evaluations"] if line["status"] == "done"}
    ends = [done.get(version) for version in (0, result["steps"])]
    if not any(ends):
        return []
    said = " → ".join(_interval(line) if line else "-" for line in ends)
    counts = {int(line["eval/tasks"]) for line in ends if line and line.get("eval/tasks")}
    tasks = " and ".join(f"{count:,}" for count in sorted(counts))
    over = f", over {tasks} task{'s' * (counts != {1})}" if counts else ""
    return figures("", f"95 % intervals {said}{over}")


def _outcome(line: Mapping[str, Any], name: str) -> str:
    if line["status"] != "done":
        why = str(line.get("error", "")).strip().splitlines()
        return f"evaluation {line['status']}{': ' + why[0] if why else ''}"
    left_out = line.get("eval/too_long")
    also = f"; {left_out:,.0f} episodes too long to be played" if left_out else ""
    return f"{name}{line['eval/reward']:.3f} ({_interval(line)}){also}"


def _interval(line: Mapping[str, Any]) -> str:
    low, high = line["eval/reward_low"], line["eval/reward_high"]
    return UNKNOWN if low is None or high is None else f"{low:.3f} to {high:.3f}"
