"""The results of benchmarks as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def formatted(value: Any) -> str:
    """Return a value as text; floats with three digits."""
    match value:
        case None:
            return ""
        case {} | [] if not value:
            return "none"
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        case dict():
            return ", ".join(f"{key} {formatted(inner)}" for key, inner in value.items())
        case _:
            return ", ".join(formatted(inner) for inner in value)


def goal_met(result: Mapping[str, Any]) -> str:
    """Return whether the goal was met, and if not, which parts were missed."""
    met = result.get("met")
    if isinstance(met, Mapping):
        missed = [name for name, holds in met.items() if not holds]
        return f"Not met: {', '.join(missed)}." if missed else "Met."
    return "" if met is None else "Met." if met else "Not met."


def outcome(result: Mapping[str, Any]) -> str:
    """Return the goal, whether it was met, its figures, and the skipped parts."""
    figures = result.get("figures")
    measured = f" Measured: {listed(figures)}." if figures else ""
    left_out = result.get("skipped")
    skipped = f" Skipped: {formatted(left_out)}." if left_out else ""
    return f"Goal: {formatted(result['goal'])}. {goal_met(result)}{measured}{skipped}"


def numeric_ratios(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the result's numeric ratios."""
    ratios = result.get("ratios") or {}
    return {name: value for name, value in ratios.items() if isinstance(value, int | float)}


def listed(named: Mapping[str, Any]) -> str:
    """Return names and values in one line."""
    return "; ".join(f"{name} {formatted(value)}" for name, value in named.items())
