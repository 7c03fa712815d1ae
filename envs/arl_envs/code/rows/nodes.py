"""Linked lists and binary trees of functions, as in LeetCode: from lists, by the annotations of the
starter code. A list of a tree's values has its levels in order, with None for what is absent."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from agentgym_rl.gym.data import RowRefused, shorten
from agentgym_rl.runtime import parse_python
from arl_envs.code.driver import NODES, Nodes

CLASSES = """\
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next
class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
"""
"""The classes that a function with such arguments may rely on; its own ones win."""

_MENTIONED = re.compile(rf"\b(?:{'|'.join(NODES)})\b")
_HEADER = re.compile(r"^[ \t]*(def\s+\w+\s*\(.*?\)\s*(?:->[^:]*)?:)", re.MULTILINE | re.DOTALL)


def uses_nodes(*texts: str) -> bool:
    """Return whether one of `texts` mentions a class of nodes."""
    return any(map(_MENTIONED.search, texts))


def node_types(starter: str) -> tuple[Sequence[str], str]:
    """Return the annotations of the arguments and of the result of the last function that `starter`
    declares; none if no class of nodes is mentioned there."""
    code = "\n".join(line for line in starter.splitlines() if not line.lstrip().startswith("#"))
    if not uses_nodes(code):
        return (), ""
    try:
        (header,) = parse_python(_HEADER.findall(code)[-1] + " pass").body
    except (IndexError, SyntaxError, ValueError) as error:
        raise RowRefused(f"{shorten(starter)}: a header that cannot be parsed") from error
    assert isinstance(header, ast.FunctionDef)
    args = [arg for arg in header.args.args if arg.arg != "self"]
    return [_text(arg.annotation) for arg in args], _text(header.returns)


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def of_list(value: Any, annotation: str) -> Any:
    """Return `value` with nodes where `annotation` wants them, alone or in a list.

    Raises:
        RowRefused: there is no list to make them of.
    """
    match = _MENTIONED.search(annotation)
    if match is None:
        return value
    if not isinstance(value, list | None):
        raise RowRefused(f"{annotation}: got {shorten(value)}, expected a list of its values")
    if re.search(r"\b[Ll]ist\[", annotation):
        return [nodes_of(match[0], each) for each in value or []]
    return nodes_of(match[0], value)


def nodes_of(kind: str, values: Any) -> Nodes | None:
    """Return the nodes of `values`; None if there are none.

    Raises:
        RowRefused: `values` is no list.
    """
    if values is None or values == []:
        return None
    if not isinstance(values, list):
        raise RowRefused(f"{kind}: got {shorten(values)}, expected a list of its values")
    while kind == "TreeNode" and values and values[-1] is None:
        values = values[:-1]
    return Nodes(kind, values) if values else None
