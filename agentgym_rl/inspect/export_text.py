"""What `arl export --sft` has written, and what not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def export_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Of the JSON object of `arl export --sft`."""
    splits = ", ".join(f"{count:,} {split}" for split, count in report["splits"].items())
    yield f"{report['lines']:,} lines of {report['episodes']:,} episodes ({splits})"
    if report["left_out"]:
        causes = ", ".join(f"{count:,} for {why}" for why, count in report["left_out"].items())
        yield f"left out: {causes}"
    if report["forked"]:
        yield (
            f"forked: {report['forked']:,} of these episodes; messages are of their last "
            "conversation alone"
        )
    if report["splits"].get("eval"):
        yield "held-out tasks are among them: a model trained on these cannot be evaluated there"
    yield f"written: {report['out']}"
