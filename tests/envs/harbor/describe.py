"""The fields of Harbor's task.toml, read from the source of the package `harbor`.

    python -m tests.envs.harbor.describe FOLDER > tests/envs/harbor/schema.json

FOLDER is the unpacked package: it is parsed, not imported, since it needs a newer Python.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

ROOT = "TaskConfig"
SOURCE = "models/task/config.py"


def schema_of(text: str) -> dict[str, dict[str, Any]]:
    """The fields of the model and of the models inside it: class, field, type and default."""
    classes = {
        node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
    }
    found: dict[str, dict[str, Any]] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = fields_of(name, classes)
        types = " ".join(field["type"] for field in found[name].values())
        waiting += [other for other in classes if other in _words(types)]
    return dict(sorted(found.items()))


def fields_of(name: str, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    """The fields of a class, those of its bases first."""
    found: dict[str, Any] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= fields_of(base.id, classes)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = _default(node.value)
            found[node.target.id] = {"type": ast.unparse(node.annotation), "default": default}
    return found


def _default(value: ast.expr | None) -> str:
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "Field":
        return "required" if value is None else ast.unparse(value)
    for keyword in value.keywords:
        if keyword.arg in ("default", "default_factory"):
            return ast.unparse(keyword.value)
    first = ast.unparse(value.args[0]) if value.args else "..."
    return "required" if first in ("...", "Ellipsis") else first


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


if __name__ == "__main__":
    described = schema_of((Path(sys.argv[1]) / SOURCE).read_text(encoding="utf-8"))
    print(json.dumps(described, indent=1))
