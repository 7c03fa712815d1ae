"""What `arl replay` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def replay_text(report: Mapping[str, Any]) -> str:
    """The comparison, batch by batch; `report` is what `--json` prints."""
    lines = [f"from {report['checkpoint'] or 'the model that the run began with'}"]
    for row in report["batches"]:
        was, now = row["loss"]
        before, after = row["parameters"]
        verdict = "bit for bit" if row["bit_for_bit"] else f"recorded {was!r}, {before}"
        ranks = f" (the run had {row['num_ranks']} ranks)" if row["num_ranks"] > 1 else ""
        lines.append(f"step {row['step']:>4}  loss {now!r}  weights {after}  {verdict}{ranks}")
    return "\n".join([*lines, "the same" if report["passed"] else "NOT the same"])
