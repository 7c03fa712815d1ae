"""Function headers in source code."""

from __future__ import annotations

import ast

from agentgym_rl.gym.data import RowRefused, check_text

from .assertions import parse


def header(source: str, entry: str) -> str:
    """Return the line that defines the function `entry`, without its body; "" if there is none."""
    try:
        tree = parse(source, "the reference solution")
    except RowRefused:  # it may be for another Python; only its header is needed
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            bare = ast.FunctionDef(
                node.name, node.args, [ast.Pass()], [], node.returns, lineno=1, col_offset=0
            )
            return ast.unparse(bare).removesuffix("\n    pass")
    return ""


def used_classes(source: str, tests: str) -> dict[str, str]:
    """Return the classes of the reference solution that `tests` use: their source by name."""
    try:
        tree = parse(source, "the reference solution")
    except RowRefused:
        return {}
    names = {node.id for node in ast.walk(parse(tests, "test")) if isinstance(node, ast.Name)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names]
    return {node.name: ast.unparse(node) for node in classes}


def before(source: str, entry: str) -> str:
    """Return the source before the top-level function `entry`: imports and helpers.

    Raises:
        RowRefused: `source` is no Python, or has no such function.
    """
    for node in parse(source, "prompt").body:
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            return check_text("".join(source.splitlines(keepends=True)[: first - 1]), "prompt")
    raise RowRefused(f"prompt: no function called {entry}")
