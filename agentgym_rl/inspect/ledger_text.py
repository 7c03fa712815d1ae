"""What `arl ledger` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ledger_text(report: Mapping[str, Any]) -> str:
    """The report on a run; `report` is what `--json` prints."""
    again = report["batches_trained_again"]
    groups = ", ".join(f"{count} {status}" for status, count in sorted(report["groups"].items()))
    state = "finished" if report["finished"] else "not finished"
    return "\n".join(
        [
            f"batches      {report['batches']}, of {report['groups_trained']} groups ({state})",
            f"incarnations {report['incarnations']}; {again} batches trained again from the log, "
            f"{report['of_these_bit_for_bit']} of them bit for bit",
            f"groups       {groups or 'none'}",
            *(f"FAULT        {fault}" for fault in report["faults"]),
            "every group was trained exactly once, none skipped"
            if report["passed"]
            else f"{len(report['faults'])} faults",
        ]
    )
