"""The families of generated tasks, by topic."""

from __future__ import annotations

from . import (
    arrays,
    connections,
    counting,
    dynamic,
    expressions,
    graphs,
    numbers,
    parsing,
    strings,
    tables,
)
from .family import Args, Draw, Family, Parameters, Topic, family

__all__ = ["FAMILIES", "Args", "Draw", "Family", "Parameters", "Topic", "family"]

FAMILIES: dict[str, Family] = {
    item.name: item
    for module in (
        strings,
        arrays,
        tables,
        numbers,
        counting,
        dynamic,
        connections,
        graphs,
        parsing,
        expressions,
    )
    for item in module.FAMILIES
}
"""The families by name."""
