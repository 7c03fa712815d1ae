"""One chore, and the words, names and files from which all are drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = {1: 4, 2: 10, 3: 24}
"""The approximate number of items in a chore, by level."""
FOLDERS = ("data", "store", "vault", "depot", "notes", "work")
PARTS = ("alpha", "beta", "gamma", "north", "south", "east", "west", "main", "side", "core")
WORDS = ("apple", "river", "stone", "cloud", "ember", "maple", "comet", "delta", "harbor", "lemon")
USERS = ("ann", "bob", "cleo", "dan", "eve", "finn", "gus", "hana")
ENDINGS = ("txt", "log", "cfg", "csv", "md")


@dataclass(frozen=True, slots=True)
class Chore:
    """A chore: an instruction, the files at the beginning, and the checks of the result."""

    instruction: str
    files: Mapping[str, bytes]
    checks: Sequence[Mapping[str, Any]]
    """The checks of the harness; doing nothing fails at least one."""
    solution: Sequence[str]
    """The shell commands that do the chore."""
    commands: Sequence[str] = ()
    """The shell commands that prepare what `files` cannot express: dates, permissions, links."""


def in_folder(chore: Chore, folder: str) -> Chore:
    """Return the same chore, with everything in a folder: few kinds of chores have varied texts,
    and tasks of different splits must not begin alike."""
    return Chore(
        f"Work in the folder {folder}/, to which paths are relative. {chore.instruction}",
        {f"{folder}/{path}": data for path, data in chore.files.items()},
        [{**check, "path": f"{folder}/{check['path']}"} for check in chore.checks],
        [f"(cd {folder}; {command}\n)" for command in chore.solution],
        [f"cd {folder}", *chore.commands] if chore.commands else (),
    )


def text_is(path: str, lines: Sequence[str]) -> dict[str, Any]:
    """Return the check that a file has exactly these lines."""
    return {"is": "text", "path": path, "text": "".join(f"{line}\n" for line in lines)}


def tree_is(path: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the check that exactly these files are in a folder and below."""
    return {"is": "tree", "path": path, "files": sorted(names)}


def drawn_paths(rng: random.Random, level: int, *, endings: Sequence[str] = ENDINGS) -> list[str]:
    """Return sorted paths of files in some folders; at level 3 some names have a blank."""
    folder = rng.choice(FOLDERS)
    paths: set[str] = set()
    while len(paths) < SIZES[level]:
        parts = rng.sample(PARTS, rng.randint(0, min(level, 2)))
        blank = " " if level == 3 and rng.random() < 0.2 else "-"
        name = f"{rng.choice(WORDS)}{blank}{rng.randint(1, 99)}.{rng.choice(endings)}"
        paths.add("/".join([folder, *parts, name]))
    return sorted(paths)


def top_of(paths: Sequence[str]) -> str:
    """Return the folder in which all drawn paths begin."""
    return paths[0].partition("/")[0]


def drawn_text(rng: random.Random, num_lines: int) -> str:
    """Return lines of a few words."""
    return "".join(
        " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5))) + "\n"
        for _ in range(num_lines)
    )


def encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    """Return texts as bytes."""
    return {path: text.encode() for path, text in files.items()}


def some(rng: random.Random, items: Sequence[str]) -> list[str]:
    """Return a part of the items, at least one and not all, in their order."""
    chosen = rng.sample(range(len(items)), rng.randint(1, max(1, len(items) // 2)))
    return [items[place] for place in sorted(chosen)]
