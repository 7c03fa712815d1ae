"""Every name that benchmarks, examples, scripts and tests import from our modules exists there, in
functions too, which run later than a change of the name is noticed; and so does every name in a
text that a test replaces."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import ROOT, imported, sources, tree_of

OUTSIDE = ("benchmarks", "examples", "scripts", "tests")
"""The folders that the type checker does not read, but for those of scripts that CI runs."""


def modules(root: Path) -> dict[str, Path]:
    """Dotted module name -> file, of the package, the plugins and the folders `OUTSIDE`."""
    found = sources(root)
    for folder in OUTSIDE:
        for file in sorted((root / folder).rglob("*.py")):
            name = ".".join(file.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


@cache
def bound(file: Path) -> frozenset[str]:
    """The names that a module binds, in functions and classes too (few do not count as its own)."""
    names = set[str]()
    for node in ast.walk(tree_of(file)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names.update((it.asname or it.name).partition(".")[0] for it in node.names)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case _:
                pass
    return frozenset(names)


def unknown(root: Path) -> list[str]:
    """Return the imported and replaced names that do not exist."""
    files = modules(root)
    return sorted(
        f"{file.relative_to(root)}:{line}: {base} has no {name}"
        for module, file in files.items()
        for line, base, name in _wanted(module, files)
        if f"{base}.{name}" not in files and name not in bound(files[base])
    )


def _wanted(module: str, files: dict[str, Path]) -> Iterator[tuple[int, str, str]]:
    """The (line, module, name) of all that a module imports from ours, or replaces in them."""
    for line, base, name in imported(module, files):
        if base in files and name not in ("", "*"):
            yield line, base, name
    for node in ast.walk(tree_of(files[module])):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr"),
                args=[ast.Constant(value=str(path)), *_],
            ):
                parts = path.split(".")
                homes = (".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1))
                if home := next((it for it in homes if it in files), ""):
                    yield node.lineno, home, parts[home.count(".") + 1]
            case _:
                pass


@pytest.mark.slow
def test_imported_and_replaced_names_exist():
    assert unknown(ROOT) == []


def test_a_name_that_is_gone_is_found(tmp_path):
    for name, text in {
        "agentgym_rl/__init__.py": "",
        "agentgym_rl/here.py": "def kept(): ...\n",
        "benchmarks/late.py": "def run():\n    from agentgym_rl.here import gone, kept\n",
        "tests/test_it.py": 'def test(patch):\n    patch.setattr("agentgym_rl.here.went", 1)\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert unknown(tmp_path) == [
        "benchmarks/late.py:2: agentgym_rl.here has no gone",
        "tests/test_it.py:2: agentgym_rl.here has no went",
    ]
