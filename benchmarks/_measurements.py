"""docs/measurements.md: prose that people write, and tables made of what was kept.

The prose is benchmarks/measurements.md.in; a line `{{ NAME }}` there is the table of that name.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ._html import verdict
from ._kept import ROOT, Kept

TEMPLATE = ROOT / "benchmarks" / "measurements.md.in"
PAGE = ROOT / "docs" / "measurements.md"
FAULTS = ROOT / "docs" / "data" / "faults.jsonl"
KEPT = ROOT / "docs" / "data" / "bench"
_NOTE = """<!-- Made of benchmarks/measurements.md.in and docs/data by arl bench all, with
ARL_BENCH_OUT=docs/data/bench: edit those. -->
"""

Row = Mapping[str, Any]


def text(found: Sequence[Kept]) -> str:
    """The page.

    Raises:
        KeyError: the template names a table that there is not.
    """
    tables: dict[str, Callable[[], str]] = {
        "faults": lambda: faults([row for row in _faults() if not _on_ray(row)]),
        "faults on ray": lambda: faults([row for row in _faults() if _on_ray(row)]),
        "all": lambda: overview(found),
    }
    return _NOTE + re.sub(
        r"^\{\{ (.+) \}\}$", lambda m: tables[m[1]](), TEMPLATE.read_text(), flags=re.MULTILINE
    )


def overview(found: Sequence[Kept]) -> str:
    """One line for each kept result."""
    lines = ["| benchmark | date | seconds, load | ratios | goal |", "|---|---|---|---|---|"]
    for kept in found:
        ratios = kept.result.get("ratios") or {}
        numbers = {k: v for k, v in ratios.items() if isinstance(v, int | float)}
        said = ", ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        met = f"failed: {kept.error}" if kept.error else verdict(kept.result)
        when = f"{kept.seconds:,.0f} s, {kept.load[0]} to {kept.load[1]}"
        cells = (f"`{kept.command}`", kept.date, when, said, met)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def faults(rows: Sequence[Row]) -> str:
    """One line for each fault: the middle and the worst of what it cost."""
    lines = [
        "| fault | runs | noticed after, s: median, worst | at full speed after, s: median, "
        "worst | groups lost | trained twice | poisoned rewards | false alarms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in sorted(dict.fromkeys(row["fault"] for row in rows)):
        of = [row for row in rows if row["fault"] == name]
        ended = [row for row in of if not row.get("error")]
        runs = str(len(of)) + (f", {len(of) - len(ended)} failed" if len(ended) < len(of) else "")
        lost = (_sum(ended, key) for key in ("groups_lost", "duplicated", "poisoned_rewards"))
        cells = (
            name.removeprefix("ray: "),
            runs,
            _spread(ended, "detected_s"),
            _spread(ended, "full_speed_s"),
            *lost,
            _sum(ended, "false_alarms"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(rows: Sequence[Row], key: str) -> str:
    values = list(_numbers(rows, key))
    return f"{statistics.median(values):.1f}, {max(values):.1f}" if values else ""


def _sum(rows: Sequence[Row], key: str) -> str:
    return f"{sum(_numbers(rows, key)):.0f}"


def _numbers(rows: Sequence[Row], key: str) -> Iterator[float]:
    return (float(row[key]) for row in rows if row[key] is not None)


def _faults(file: Path = FAULTS) -> list[Row]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _on_ray(row: Row) -> bool:
    return str(row["fault"]).startswith("ray: ")
