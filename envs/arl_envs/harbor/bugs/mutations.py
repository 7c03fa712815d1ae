"""Bugs to plant: small changes at a position of a source text, so that all other bytes stay."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agentgym_rl.runtime import parse_python

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OPERATORS = {"+": "-", "-": "+", "*": "+", "//": "%", "%": "//", "/": "*"}
PAIRS = {"min": "max", "max": "min", "any": "all", "all": "any"}
METHODS = {"lstrip": "rstrip", "rstrip": "lstrip", "upper": "lower", "lower": "upper"}
METHODS |= {"popleft": "pop", "appendleft": "append", "find": "rfind", "ljust": "rjust"}
METHODS |= {"partition": "rpartition", "startswith": "endswith", "endswith": "startswith"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one file: the text from `start` to `end` becomes `new`."""

    kind: str
    path: str
    start: int
    end: int
    new: str

    def applied(self, source: str) -> str:
        """Return the file's text with the bug."""
        return source[: self.start] + self.new + source[self.end :]


Change = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Source:
    """A text, and its parsed nodes."""

    text: str
    starts: list[int]
    tree: ast.Module

    @classmethod
    def of(cls, text: str) -> Source:
        """Return an ASCII text, parsed: a column in bytes is then one in characters."""
        text.encode("ascii")
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return cls(text, starts, parse_python(text))

    def span(self, node: Any) -> tuple[int, int]:
        """Return the positions in the text at which a node begins and ends."""
        first = self.starts[node.lineno - 1] + node.col_offset
        return first, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text_of(self, node: Any) -> str:
        """Return a node's text."""
        return self.text[slice(*self.span(node))]

    def between(self, left: Any, right: Any, word: str) -> tuple[int, int] | None:
        """Return the span of `word` between two nodes; None if anything else is there."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.text[start:end]
        if gap.strip("() \n") != word:
            return None
        at = start + gap.index(word)
        return at, at + len(word)

    def indent(self, node: Any) -> str:
        """Return the blanks before a statement's line."""
        return " " * node.col_offset


def mutations_of(path: str, text: str, kinds: Iterable[str] = ()) -> list[Mutation]:
    """Return the changes of a file of some `kinds` (none: all), in the order of the text.

    Some do not change the behavior.
    """
    source = Source.of(text)
    found = [
        Mutation(kind, path, *change)
        for kind in kinds or KINDS
        for function in _functions(source.tree)
        for change in KINDS[kind](source, function)
    ]
    return sorted(found, key=lambda one: (one.start, one.end, one.kind, one.new))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                yield function


def _comparisons(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            for word, new in COMPARISONS.items():
                if at := source.between(node.left, node.comparators[0], word):
                    yield *at, new


def _directions(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "in": "not in", "not in": "in"}
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            for word, new in turned.items():
                if at := source.between(node.left, node.comparators[0], word):
                    yield *at, new


def _operators(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp):
            for word, new in OPERATORS.items():
                if at := source.between(node.left, node.right, word):
                    yield *at, new
        if isinstance(node, ast.AugAssign):
            for word, new in {"+=": "-=", "-=": "+=", "*=": "+=", "//=": "%="}.items():
                if at := source.between(node.target, node.value, word):
                    yield *at, new


def _numbers(function: ast.FunctionDef) -> Iterator[tuple[ast.Constant, int]]:
    defaults = [*function.args.defaults, *function.args.kw_defaults]
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and type(node.value) is int and node not in defaults:
            yield node, node.value


def _off_by_one(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node, value in _numbers(function):
        if value in (0, 1, 2):
            yield *source.span(node), str(value + 1)
        if value in (1, 2):
            yield *source.span(node), str(value - 1)


def _constants(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node, value in _numbers(function):
        if value > 2:
            for new in (value + 1, value - 1, value * 10):
                yield *source.span(node), str(new)
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and type(node.value) is bool:
            yield *source.span(node), str(not node.value)


def _variables(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    """Yield uses of a local name that become another name."""
    names = [arg.arg for arg in function.args.args if arg.arg != "self"]
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in names:
            names.append(node.id)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            for other in names:
                if other != node.id:
                    yield *source.span(node), other


def _swapped(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            first, second = node.args
            if isinstance(first, ast.Starred | ast.GeneratorExp):
                continue
            start, end = source.span(first)[0], source.span(second)[1]
            yield start, end, f"{source.text_of(second)}, {source.text_of(first)}"


def _missing_return(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            start, end = source.span(node)
            yield start, end, source.text[start:end].removeprefix("return").lstrip()


def _negations(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    plain = ast.Name | ast.Call | ast.Attribute
    for node in ast.walk(function):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield *source.span(node), source.text_of(node.operand)
        elif isinstance(node, ast.If) and isinstance(node.test, plain):
            yield *source.span(node.test), f"not {source.text_of(node.test)}"


def _defaults(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in [*function.args.defaults, *function.args.kw_defaults]:
        if isinstance(node, ast.Constant) and node.value is not None:
            value = node.value
            if isinstance(value, bool):
                new = [not value]
            elif isinstance(value, int):
                new = [value + 1, value - 1]
            else:
                new = [""] if value else [" "]
            for one in new:
                yield *source.span(node), repr(one).replace("'", '"')


def _mutable_default(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    """Yield defaults of None that become a list or dictionary which all calls share."""
    names = [arg.arg for arg in function.args.args][-len(function.args.defaults) or None :]
    for name, default in zip(names, function.args.defaults, strict=False):
        if not isinstance(default, ast.Constant) or default.value is not None:
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Assign) or source.text_of(node.targets[0]) != name:
                continue
            if source.text_of(node.value) in ("[]", "{}"):
                yield *source.span(default), source.text_of(node.value)


def _dropped(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if not isinstance(node, ast.AugAssign | ast.Expr) or node.lineno != node.end_lineno:
            continue
        if isinstance(node, ast.AugAssign) or isinstance(node.value, ast.Call):
            yield *source.span(node), "pass"


def _slices(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        part = node.slice
        if isinstance(part, ast.Slice):
            for bound in (part.lower, part.upper):
                if bound is not None:
                    yield *source.span(bound), f"{source.text_of(bound)} + 1"
                    yield *source.span(bound), ""
        elif source.text_of(part) in ("0", "-1"):
            yield *source.span(part), "-1" if source.text_of(part) == "0" else "0"


def _and_or(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp) and len(node.values) == 2:
            word = "and" if isinstance(node.op, ast.And) else "or"
            if at := source.between(node.values[0], node.values[1], word):
                yield *at, "or" if word == "and" else "and"


def _min_max(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PAIRS:
            yield *source.span(node.func), PAIRS[node.func.id]


def _methods(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            new = METHODS.get(node.func.attr)
            if new is not None:
                end = source.span(node.func)[1]
                yield end - len(node.func.attr), end, new


def _keys(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    """Yield keys of dictionaries and fields of self that become another one of the file."""
    words = sorted(
        {
            node.slice.value
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        }
    )
    fields = sorted(set(re.findall(r"\bself\.(_?[a-z_]+) [-+]?= ", source.text)))
    read = {f"self.{name}" for name in fields}
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            for word in words if isinstance(node.slice.value, str) else ():
                if word != node.slice.value:
                    yield *source.span(node.slice), f'"{word}"'
        elif isinstance(node, ast.Attribute) and source.text_of(node) in read:
            end = source.span(node)[1]
            for name in fields:
                if name != node.attr and isinstance(node.ctx, ast.Load):
                    yield end - len(node.attr), end, name


def _early_return(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    """Yield returns after a loop that move into it."""
    for node in ast.walk(function):
        body = node.body if isinstance(node, ast.FunctionDef | ast.If | ast.For) else []
        for before, after in itertools.pairwise(body):
            if isinstance(before, ast.For | ast.While) and isinstance(after, ast.Return):
                start = source.span(after)[0]
                yield start, start, "    "


def _loop_exits(source: Source, function: ast.FunctionDef) -> Iterator[Change]:
    for node in ast.walk(function):
        if isinstance(node, ast.Continue | ast.Break):
            yield *source.span(node), "break" if isinstance(node, ast.Continue) else "continue"


KINDS: dict[str, Callable[[Source, ast.FunctionDef], Iterator[Change]]] = {
    "comparison": _comparisons,
    "direction": _directions,
    "operator": _operators,
    "off-by-one": _off_by_one,
    "constant": _constants,
    "variable": _variables,
    "swapped-arguments": _swapped,
    "missing-return": _missing_return,
    "negation": _negations,
    "default": _defaults,
    "mutable-default": _mutable_default,
    "dropped-line": _dropped,
    "slice": _slices,
    "and-or": _and_or,
    "min-max": _min_max,
    "method": _methods,
    "key": _keys,
    "early-return": _early_return,
    "loop-exit": _loop_exits,
}
"""The kinds of mutation; each yields its changes in one function."""

EASY = ("comparison", "direction", "operator", "off-by-one", "constant", "variable", "min-max")
"""The kinds of level 1: one word of one line."""
