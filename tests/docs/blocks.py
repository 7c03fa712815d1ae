"""The fenced code blocks of the documents, and the commands in those of the shell."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]+=")


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    page: str
    """Path from the root of the repository."""
    line: int
    """Of its first line, from 1."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a shell block, without comments and without variables before it."""

    where: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.argv)}"


def blocks(language: str | None = None, page: str | None = None) -> list[Block]:
    """All blocks, of one language or of one page if asked."""
    found = (block for file in PAGES for block in _blocks(file))
    return [
        block
        for block in found
        if language in (None, block.language) and page in (None, block.page)
    ]


def commands(program: str | None = None) -> list[Command]:
    """All commands of the blocks in `bash`, those of one program if asked."""
    found = (command for block in blocks("bash") for command in _commands(block))
    return [command for command in found if program in (None, command.argv[0])]


def spoken(program: str) -> list[Command]:
    """The commands of a program that stand within sentences; without those that leave parts out."""
    found: list[Command] = []
    for file in PAGES:
        text = FENCE.sub("", file.read_text())
        for said in re.findall(rf"`({program} [^`\n]+)`", text):
            if not re.search(r"…|\.\.\.|COMMAND", said):
                found.append(Command(_named(file), tuple(shlex.split(said))))
    return found


def load_script(path: str) -> Any:
    """Return a program of `scripts/` as a module."""
    name = PurePath(path).name
    found = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{path}.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


def _blocks(file: Path) -> Iterator[Block]:
    text = file.read_text()
    for match in FENCE.finditer(text):
        indent = match["indent"]
        inner = "".join(line.removeprefix(indent) for line in match["text"].splitlines(True))
        line = text.count("\n", 0, match.start()) + 2
        yield Block(_named(file), line, match["language"].strip(), inner)


def _commands(block: Block) -> Iterator[Command]:
    whole = block.text.replace("\\\n", " ")
    for line in whole.splitlines():
        # What is asked of other programs on the way is not looked into.
        for words in _split(shlex.split(re.sub(r"\$\([^)]*\)", "", line), comments=True)):
            while words and _ASSIGNMENT.match(words[0]):
                words = words[1:]
            if words:
                program = PurePath(words[0]).name  # .venv/bin/arl is arl
                yield Command(str(block), (program, *words[1:]))


def _split(words: list[str]) -> Iterator[list[str]]:
    """At what ends a command of the shell."""
    command: list[str] = []
    for word in [*words, ";"]:
        if word in (";", "&", "&&", "|"):
            yield command
            command = []
        else:
            command.append(word)


def _named(file: Path) -> str:
    return str(file.relative_to(ROOT))
