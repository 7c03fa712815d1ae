"""Statements, computed without being executed, and their assertions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from agentgym_rl.runtime import parse_python
from arl_envs.code.driver import Built

from .allowed import NotComputable, items
from .expressions import Expressions
from .values import (
    ANSWER,
    ENTRY,
    Broken,
    Continued,
    Every,
    Module,
    Open,
    Returned,
    show,
)

MAX_VIEW_STEPS = 100_000
"""The most steps in the computation of a view of one answer."""


def view_of(source: str, answer: Any) -> Any:
    """Return the value of `source` for the answer: functions, then one expression.

    Raises:
        NotComputable: the value cannot be computed for this answer.
    """
    *functions, last = parse_python(source).body
    assert isinstance(last, ast.Expr)
    calculator = Calculator({ANSWER: answer}, steps=MAX_VIEW_STEPS)
    return calculator.computed(lambda: (calculator.run(functions), calculator.value(last.value))[1])


class Calculator(Expressions):
    """An evaluator of expressions and statements; `asserted` holds the open assertions."""

    def computed(self, work: Callable[[], Any]) -> Any:
        """Return the result of `work`.

        Raises:
            NotComputable: `work` needs more than this class computes, takes too long, or raised an
                error.
        """
        try:
            return work()
        except NotComputable:
            raise
        except (Broken, Continued, Returned) as error:
            raise NotComputable("a statement in the wrong place") from error
        except RecursionError as error:
            raise NotComputable("nested too deeply") from error
        except Exception as error:  # errors of Python itself for values that do not fit
            raise NotComputable(f"{type(error).__name__}: {error}") from error

    # -------------------------------------------------------------- statements
    def run(self, statements: Sequence[ast.stmt]) -> None:
        for node in statements:
            self._step()
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assert():
                self.claim(self.value(node.test), node)
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AnnAssign(value=None) | ast.Pass() | ast.Global() | ast.Nonlocal():
                pass
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(target, self.value(value))
            case ast.AugAssign(target=target, op=op, value=value):
                load = parse_python(ast.unparse(target), "eval").body
                self._assign(target, self.value(ast.BinOp(load, op, value)))
            case ast.Expr(value=value):
                self.value(value)
            case ast.FunctionDef():
                self._scopes[-1][node.name] = self._helper(node)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.If():
                truth = self.value(node.test)
                self.run(node.body if self._closed(truth, node.test) else node.orelse)
            case ast.For():
                self._loop(node, iter(items(self._closed(self.value(node.iter), node))))
            case ast.While():
                self._loop(node, None)
            case ast.Return(value=value):
                raise Returned(None if value is None else self.value(value))
            case ast.Break():
                raise Broken
            case ast.Continue():
                raise Continued
            case _:
                raise NotComputable(f"a statement that would have to be executed: {show(node)}")

    def claim(self, truth: Any, node: ast.AST) -> None:
        """Record that `truth` must hold."""
        if isinstance(truth, Every):
            for each in truth.truths:
                self.claim(each, node)
        elif isinstance(truth, Open):
            self.asserted.append(truth)
        elif not truth:
            raise NotComputable(f"it fails for every returned value: {show(node)}")

    def _loop(self, node: ast.For | ast.While, values: Iterator[Any] | None) -> None:
        while True:
            self._step()
            if isinstance(node, ast.For):
                assert values is not None
                try:
                    self._assign(node.target, next(values))
                except StopIteration:
                    break
            elif not self._closed(self.value(node.test), node):
                break
            try:
                self.run(node.body)
            except Continued:
                continue
            except Broken:
                return
        self.run(node.orelse)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Bind the known names; unknown names are refused at their use."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                if alias.name in self._modules:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._scopes[-1][name] = Module(alias.name)
            elif alias.name in (found := self._modules.get(node.module or "", {})):
                self._scopes[-1][alias.asname or alias.name] = found[alias.name]

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                if self._scopes[-1].get(name) is ENTRY:
                    raise NotComputable(f"{name} is assigned to")
                self._scopes[-1][name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                if isinstance(value, Open):
                    index = [ast.Constant(i) for i in range(len(targets))]
                    values = [
                        replace(self._open(value), node=ast.Subscript(value.node, i, ast.Load()))
                        for i in index
                    ]
                else:
                    values = items(value)
                if any(isinstance(each, ast.Starred) for each in targets) or len(values) != len(
                    targets
                ):
                    raise NotComputable(f"values for {show(target)}")
                for each, item in zip(targets, values, strict=True):
                    self._assign(each, item)
            case ast.Subscript(value=owner, slice=index):
                self._closed(self.value(owner), target)[self._closed(self.value(index), target)] = (
                    value
                )
            case ast.Attribute(value=owner, attr=name):
                built = self.value(owner)
                if not isinstance(built, Built):
                    raise NotComputable(f"an attribute that is set: {show(target)}")
                built.attributes[name] = value
            case _:
                raise NotComputable(f"assignment to {show(target)}")
