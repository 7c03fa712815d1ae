"""The libraries in which bugs are planted: real sources in the folder `libraries`, in renamed
variants."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .program import Case, Program

FOLDER = Path(__file__).parent / "libraries"
NUM_SHOWN, NUM_HIDDEN = 3, 7
"""The cases of each group that are visible tests, and that are hidden."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library: its purpose, the functions that draw cases, and the names that may be changed."""

    name: str
    about: str
    groups: Mapping[str, Callable[[random.Random], Case]]
    """The drawing of one case, by the name of the visible test."""
    names: Mapping[str, Sequence[str]]
    """Names in the sources, with names that may replace them."""


def library_program(library: Library, variant: int) -> Program:
    """Return a variant of a library: names, order of functions, and cases."""
    rng = random.Random(f"arl-bugs/{library.name}/{variant}")
    names = {name: rng.choice([name, *others]) for name, others in library.names.items()}
    modules = {
        _renamed(path, names): _renamed(_shuffled(text, rng), names)
        for path, text in _sources(library.name).items()
    }
    shown: dict[str, list[Case]] = {}
    hidden: list[Case] = []
    for test, drawn in library.groups.items():
        cases = [_case(drawn(rng), names) for _ in range(NUM_SHOWN + NUM_HIDDEN)]
        shown[test] = cases[:NUM_SHOWN]
        hidden += cases[NUM_SHOWN:]
    name = _renamed(library.name, names)
    return Program(name, _renamed(library.about, names), modules, shown, hidden)


@cache
def _sources(name: str) -> dict[str, str]:
    paths = sorted((FOLDER / name).glob("*.py"))
    return {f"{name}/{path.name}": path.read_text(encoding="ascii") for path in paths}


def _shuffled(text: str, rng: random.Random) -> str:
    """Return a source whose top-level functions are in another order."""
    blocks = text.rstrip("\n").split("\n\n\n")
    places = [place for place, block in enumerate(blocks) if block.startswith("def ")]
    functions = [blocks[place] for place in places]
    rng.shuffle(functions)
    for place, function in zip(places, functions, strict=True):
        blocks[place] = function
    return "\n\n\n".join(blocks) + "\n"


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Za-z_]+\b", lambda found: names.get(found[0], found[0]), text)


def _case(case: Case, names: Mapping[str, str]) -> Case:
    return [{key: _of(key, value, names) for key, value in step.items()} for step in case]


def _of(key: str, value: Any, names: Mapping[str, str]) -> Any:
    return value if key == "args" else _renamed(value, names)
