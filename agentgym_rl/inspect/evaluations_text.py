"""The evaluations of a run as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.eval_records import EvalRecord

from .figures import figures


def eval_line(record: EvalRecord) -> str:
    """A record that came to its end."""
    return f"version {record.version}: {_outcome(record.line(), 'held-out reward ')}"


def evaluation_lines(result: Mapping[str, Any]) -> list[str]:
    """Of a finished run: evaluations between its first and its last one, and the best checkpoint;
    `result` is what `arl train --json` prints."""
    lines: list[str] = []
    for line in result["evaluations"]:
        if 0 < line["version"] < result["steps"]:
            lines += figures(f"  version {line['version']}", _outcome(line, ""))
    if best := result["best"]:
        said = f"{best['checkpoint']} ({best['metric']} {best['value']:.3f})"
        lines += figures("best checkpoint", said)
        lines += figures("", f"arl export --model {best['checkpoint']} --out FOLDER")
    return lines


def _outcome(line: Mapping[str, Any], name: str) -> str:
    if line["status"] != "done":
        why = str(line.get("error", "")).strip().splitlines()
        return f"evaluation {line['status']}{': ' + why[0] if why else ''}"
    low, high = line["eval/reward_low"], line["eval/reward_high"]
    between = "" if low is None or high is None else f" ({low:.3f} to {high:.3f})"
    return f"{name}{line['eval/reward']:.3f}{between}"
