"""Expressions that recreate a value anywhere, from the parts that it was computed from."""

from __future__ import annotations

import ast
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym_rl.runtime import parse_python
from arl_envs.code.driver import encode

from . import allowed
from .allowed import BUILTINS, TYPES, NotComputable
from .values import (
    Every,
    Helper,
    Module,
    Open,
    approximate,
    has_open,
    key_of,
    opens_of,
    show,
)

MAX_STEPS = 500_000
"""The most steps in the computation of a row's tests."""


class Lifting(ABC):
    """The base for open values: values made of these, and expressions that recreate them."""

    def __init__(self, names: Mapping[str, Any], *, steps: int = MAX_STEPS) -> None:
        self._modules = allowed.modules() | {"pytest": {"approx": approximate}}
        self._scopes: list[dict[str, Any]] = [dict(names)]
        self._steps, self._depth = steps, 0
        self.asserted: list[Open] = []

    @abstractmethod
    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression; `Open` if it depends on the answer."""

    @abstractmethod
    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Run statements."""

    @abstractmethod
    def _assign(self, target: ast.expr, value: Any) -> None: ...

    def _sources(self, name: str, known: Sequence[str] = ()) -> dict[str, str]:
        """Return the source of a helper and of the helpers that it calls."""
        helper = self._scopes[0].get(name)
        if not isinstance(helper, Helper) or name in known:
            return {}
        found = {name: ast.unparse(helper.node)}
        for inner in ast.walk(helper.node):
            if isinstance(inner, ast.Name) and inner.id != name:
                if isinstance(
                    self._scopes[0].get(inner.id), Open | list | dict | int | float | str
                ):
                    raise NotComputable(f"{name} takes {inner.id} from outside")
                found |= self._sources(inner.id, [*known, name])
        return found

    def _open(self, value: Open, node: ast.expr | None = None) -> Open:
        return Open(node or value.node, value.args, helpers=value.helpers)

    def _joined(
        self,
        values: Sequence[Any],
        build: Callable[[list[ast.expr]], ast.expr],
        also: Sequence[Open] = (),
    ) -> Open:
        """Return an open value that is made of several values, some of them open."""
        opens = [*opens_of(values), *also]
        if len({key_of(each) for each in opens}) > 1:
            raise NotComputable("several calls of the function in one comparison")
        helpers: dict[str, str] = {}
        for each in opens:
            helpers |= each.helpers
        node = build([self._lifted(value, helpers) for value in values])
        return Open(node, opens[0].args, helpers=helpers)

    def _lifted(self, value: Any, helpers: dict[str, str]) -> ast.expr:
        """Return an expression that recreates `value` anywhere.

        Raises:
            NotComputable: no expression can.
        """
        if isinstance(value, Open):
            return value.node
        if isinstance(value, Helper):
            if isinstance(value.node, ast.Lambda):
                return Closer(self, helpers).visit(copy.deepcopy(value.node))
            helpers |= self._sources(value.node.name)
            return ast.Name(value.node.name, ast.Load())
        if isinstance(value, list | tuple) and has_open(value):
            parts = [self._lifted(each, helpers) for each in value]
            return (
                ast.List(parts, ast.Load())
                if isinstance(value, list)
                else ast.Tuple(parts, ast.Load())
            )
        if isinstance(value, type) or callable(value):
            return self._named(value)
        encode(value)
        return parse_python(repr(value), "eval").body

    def _named(self, function: Any) -> ast.expr:
        for table in (TYPES, BUILTINS):
            for name, known in table.items():
                if known is function:
                    return ast.Name(name, ast.Load())
        for module, table in self._modules.items():
            for name, known in table.items():
                if known is function:
                    return ast.Attribute(ast.Name(module, ast.Load()), name, ast.Load())
        raise NotComputable(f"a call of an unknown function: {function!r:.60}")

    def _lifted_function(self, node: ast.Call, function: Any) -> ast.expr:
        if isinstance(function, Helper):
            return self._lifted(function, {})
        if isinstance(node.func, ast.Attribute):  # a method of a value
            try:
                return self._named(function)
            except NotComputable:
                owner = self._lifted(self.value(node.func.value), {})
                return ast.Attribute(owner, node.func.attr, ast.Load())
        return self._named(function)

    def _closed(self, value: Any, node: ast.AST | Any, *, deep: bool = True) -> Any:
        """Return `value`, which must not depend on the answer."""
        if isinstance(value, Open | Every) or (deep and has_open(value)):
            raise NotComputable(f"it depends on the returned value: {show(node)}")
        return value

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise NotComputable("it takes too long to compute")


class Closer(ast.NodeTransformer):
    """A transformer that replaces names by values unless the expression itself binds them."""

    def __init__(self, calculator: Lifting, helpers: dict[str, str]) -> None:
        self._calculator, self._helpers = calculator, helpers
        self._bound: set[str] = set()

    def visit(self, node: ast.AST) -> Any:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                self._bound.add(inner.id)
            elif isinstance(inner, ast.arg):
                self._bound.add(inner.arg)
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._bound:
            return node
        value = self._calculator.value(node)
        if isinstance(value, Module) or node.id in BUILTINS or node.id in TYPES:
            return node
        return self._calculator._lifted(value, self._helpers)  # pyright: ignore[reportPrivateUsage]
