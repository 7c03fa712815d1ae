"""What an engine counts, read from Prometheus' text format."""

from __future__ import annotations


def read_counters(text: str) -> dict[str, float]:
    """By name, series of one name (which differ in their labels) added up.

    Raises:
        ValueError: a line is none of that format.
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        series, _, rest = line.rpartition("}") if "}" in line else line.partition(" ")
        name = series.partition("{")[0].strip()
        value = (rest or "").split()
        if not name or not value:
            raise ValueError(f"not Prometheus' text format: {line[:100]!r}")
        found[name] = found.get(name, 0.0) + float(value[0])
    return found
