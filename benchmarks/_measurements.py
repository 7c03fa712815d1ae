"""The page docs/measurements.md: written prose, and tables made of kept results.

The prose is benchmarks/measurements.md.in; a line `{{ NAME }}` there is the table of that name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ._formatting import goal_met, listed, numeric_ratios
from ._kept import ROOT, Kept, read_rows
from ._tables import TABLES, markdown, section
from .faults import table

TEMPLATE = ROOT / "benchmarks" / "measurements.md.in"
PAGE = ROOT / "docs" / "measurements.md"
FAULTS = ROOT / "docs" / "data" / "faults.jsonl"
KEPT = ROOT / "docs" / "data" / "bench"
_NOTE = """<!-- Made of benchmarks/measurements.md.in and docs/data by arl bench all, with
ARL_BENCH_OUT=docs/data/bench: edit those. -->
"""

Row = Mapping[str, Any]


def text(found: Sequence[Kept]) -> str:
    """Return the page.

    Raises:
        KeyError: the template names an unknown table.
    """
    kept = {one.name: one for one in found}
    tables: dict[str, Callable[[], str]] = {
        **{name: partial(_section, name, kept) for name in TABLES},
        "faults": lambda: faults(read_rows(FAULTS)),
        "all": lambda: overview(found),
    }
    return _NOTE + re.sub(
        r"^\{\{ (.+) \}\}$", lambda m: tables[m[1]](), TEMPLATE.read_text(), flags=re.MULTILINE
    )


def _section(name: str, kept: Mapping[str, Kept]) -> str:
    if name not in kept:
        return f"`arl bench {name}`: not measured since there is a report of all."
    if kept[name].error:
        return f"`{kept[name].command}`, {kept[name].date}: failed, {kept[name].error}"
    return section(kept[name])


def overview(found: Sequence[Kept]) -> str:
    """Return a table with one line for each kept result."""
    lines: list[Sequence[str]] = []
    for kept in found:
        met = f"failed: {kept.error}" if kept.error else goal_met(kept.result)
        when = f"{kept.seconds:,.0f} s, {kept.load[0]} to {kept.load[1]}"
        lines.append(
            (f"`{kept.command}`", kept.date, when, listed(numeric_ratios(kept.result)), met)
        )
    return markdown(["benchmark", "date", "seconds, load", "ratios", "goal"], lines)


def faults(rows: Sequence[Row]) -> str:
    """Return a table with one line for each fault: the median and the worst of its costs."""
    heads = ["fault", "on", "runs", "noticed after, s: median, worst"]
    heads += ["at full speed after, s: median, worst", "groups lost", "trained twice"]
    heads += ["poisoned rewards", "false alarms"]
    failed = Counter(row["fault"] for row in rows if row.get("error"))
    lines: list[Sequence[str]] = []
    for line in sorted(table(rows), key=lambda line: _what_and_where(line["fault"])):
        name, lost = line["fault"], ("groups_lost", "duplicated", "poisoned_rewards")
        cells = (
            *_what_and_where(name),
            f"{line['runs']}, {failed[name]} failed" if failed[name] else str(line["runs"]),
            _spread(line, "detected_s"),
            _spread(line, "full_speed_s"),
            *(str(line[key]) for key in (*lost, "false_alarms")),
        )
        lines.append(cells)
    return markdown(heads, lines)


def _spread(line: Row, key: str) -> str:
    middle, worst = line[f"{key}_median"], line[f"{key}_max"]
    return "" if middle is None else f"{middle:.1f}, {worst:.1f}"


def _what_and_where(fault: str) -> tuple[str, str]:
    what = fault.removeprefix("ray: ")
    return what, "one machine" if what == fault else "Ray"
