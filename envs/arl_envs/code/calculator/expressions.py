"""Expressions, computed without being executed."""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from arl_envs.code.driver import Built

from . import allowed
from .allowed import BUILTINS, TYPES, NotComputable, attribute, items
from .calls import Calls
from .lifting import Closer
from .values import (
    Approximate,
    Every,
    Module,
    Open,
    has_open,
    is_items,
    key_of,
    opens_of,
    show,
)

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: allowed.plus, ast.Sub: operator.sub, ast.Mult: allowed.times,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: allowed.percent,
    ast.Pow: allowed.power, ast.LShift: allowed.shifted, ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
_UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_,
          ast.Invert: operator.invert}  # fmt: skip
_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


class Expressions(Calls):
    """An evaluator of expressions."""

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression; `Open` if it depends on the answer."""
        self._step()
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, op, self.value(left), self.value(right))
            case ast.UnaryOp(op=op, operand=operand):
                value = self.value(operand)
                if isinstance(value, Open):
                    return self._open(value, ast.UnaryOp(op, value.node))
                return _UNARY[type(op)](self._closed(value, node))
            case ast.BoolOp():
                return self._all_or_any(node)
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self._closed(self.value(test), node) else orelse)
            case ast.List(elts=nodes):
                return self._display(nodes, list, lambda parts: ast.List(parts, ast.Load()))
            case ast.Tuple(elts=nodes):
                return self._display(nodes, tuple, lambda parts: ast.Tuple(parts, ast.Load()))
            case ast.Set(elts=nodes):
                return set(self._closed(self._elements(nodes), node))
            case ast.Dict(keys=keys, values=nodes):
                return self._dict(node, keys, nodes)
            case ast.Subscript(value=owner, slice=index):
                return self._subscript(node, self.value(owner), self.value(index))
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(part and self.value(part) for part in (lower, upper, step)))
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(node, self.value(owner), name)
            case ast.Call():
                return self._call(node)
            case ast.Lambda():
                return self._helper(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case ast.JoinedStr(values=parts):
                return "".join(self._closed([self.value(part) for part in parts], node))
            case ast.FormattedValue(value=inner, conversion=conversion, format_spec=spec):
                value = self._closed(self.value(inner), node)
                value = {115: str, 114: repr, 97: ascii}.get(conversion, lambda v: v)(value)
                return allowed.written(value, self.value(spec) if spec else "")
            case ast.NamedExpr(target=ast.Name(id=name), value=inner):
                self._scopes[-1][name] = self.value(inner)
                return self._scopes[-1][name]
            case _:
                raise NotComputable(f"not a literal or a computation: {show(node)}")

    def _name(self, name: str) -> Any:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        if name in TYPES:
            return TYPES[name]
        if name in BUILTINS:
            return BUILTINS[name]
        if name in self._modules:
            return Module(name)
        raise NotComputable(f"{name} is not known, nor a literal or a computation")

    def _binary(self, node: ast.expr, op: ast.operator, left: Any, right: Any) -> Any:
        if not isinstance(left, Open) and not isinstance(right, Open):
            return _BINARY[type(op)](self._closed(left, node), self._closed(right, node))
        found = self._joined([left, right], lambda parts: ast.BinOp(parts[0], op, parts[1]))
        if isinstance(op, ast.Sub) and not (isinstance(left, Open) and isinstance(right, Open)):
            one, other = (left, right) if isinstance(left, Open) else (right, left)
            return replace(found, difference=(one.node, other))
        return found

    def _all_or_any(self, node: ast.BoolOp) -> Any:
        is_all = isinstance(node.op, ast.And)
        truths: list[Any] = []
        for each in node.values:
            value = self.value(each)
            if isinstance(value, Open | Every):
                truths.append(value)
            elif bool(value) != is_all or (each is node.values[-1] and not truths):
                return value
        if is_all:
            return Every(truths)
        return self._joined(truths, lambda parts: ast.BoolOp(ast.Or(), parts))

    def _compare(self, node: ast.Compare) -> Any:
        values = [self.value(each) for each in (node.left, *node.comparators)]
        truths = [
            self._compared(op, left, right)
            for op, left, right in zip(node.ops, values[:-1], values[1:], strict=True)
        ]
        if len(truths) == 1:
            return truths[0]
        if any(isinstance(truth, Open | Every) for truth in truths):
            return Every(truths)
        return all(truths)

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        alike = is_items(left) and type(left) is type(right) and len(left) == len(right)
        if isinstance(op, ast.Eq) and alike and has_open([left, right]):
            pairs = zip(left, right, strict=True)
            return Every([self._compared(op, one, other) for one, other in pairs])
        is_open = isinstance(left, Open), isinstance(right, Open)
        if not any(is_open):
            for value in (left, right):
                self._closed(value, op)
            return _COMPARED[type(op)](left, right)
        one, other = (left, right) if is_open[0] else (right, left)
        if isinstance(other, Approximate) and isinstance(op, ast.Eq):
            return replace(
                self._open(one), wanted=(one.node, other.value, other.relative, other.absolute)
            )
        found = self._joined([left, right], lambda parts: ast.Compare(parts[0], [op], [parts[1]]))
        if all(is_open):
            return found
        if isinstance(op, ast.Eq) or (isinstance(op, ast.Is) and other is None):
            return replace(found, wanted=(one.node, other, 0.0, None))
        if one.distance and isinstance(op, ast.Lt | ast.LtE if is_open[0] else ast.Gt | ast.GtE):
            return replace(found, wanted=(*one.distance, 0.0, other))
        return found

    def _display(
        self, nodes: Sequence[ast.expr], kind: Callable[[list[Any]], Any],
        build: Callable[[list[ast.expr]], ast.expr],
    ) -> Any:  # fmt: skip
        found = self._elements(nodes)
        if has_open(found) and len({key_of(each) for each in opens_of(found)}) == 1:
            return self._joined(found, build)
        return kind(found)

    def _dict(
        self, node: ast.Dict, keys: Sequence[ast.expr | None], nodes: Sequence[ast.expr]
    ) -> Any:
        made: dict[Any, Any] = {}
        for key, each in zip(keys, nodes, strict=True):
            value = self._closed(self.value(each), node)
            if key is None:
                made.update(value)
            else:
                made[self._closed(self.value(key), node)] = value
        return made

    def _subscript(self, node: ast.expr, owner: Any, index: Any) -> Any:
        if isinstance(owner, Open):
            if isinstance(index, slice):
                parts = [
                    None if p is None else self._lifted(p, {})
                    for p in (index.start, index.stop, index.step)
                ]
                return self._open(owner, ast.Subscript(owner.node, ast.Slice(*parts), ast.Load()))
            return self._joined([owner, index], lambda p: ast.Subscript(p[0], p[1], ast.Load()))
        found = self._closed(owner, node, deep=False)[self._closed(index, node)]
        return found

    def _attribute(self, node: ast.expr, owner: Any, name: str) -> Any:
        if isinstance(owner, Module):
            if name in (found := self._modules[owner.name]):
                return found[name]
            raise NotComputable(f"{owner.name}.{name} is not known, nor a literal or a computation")
        if isinstance(owner, Open):
            return self._open(owner, ast.Attribute(owner.node, name, ast.Load()))
        if isinstance(owner, Built) and name in owner.attributes:
            return owner.attributes[name]
        return attribute(self._closed(owner, node), name)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Any:
        first = self.value(node.generators[0].iter)
        if isinstance(first, Open):
            helpers: dict[str, str] = {}
            closed = copy.deepcopy(node)
            closed.generators[0].iter = ast.Constant(None)  # a placeholder for the open iterable
            closed = Closer(self, helpers).visit(closed)
            closed.generators[0].iter = first.node
            return self._open(replace(first, helpers={**first.helpers, **helpers}), closed)
        found: list[Any] = []
        self._scopes.append({})
        try:
            self._generate(node, 0, found, first)
        finally:
            self._scopes.pop()
        if isinstance(node, ast.DictComp):
            return dict(self._closed(found, node))
        return set(self._closed(found, node)) if isinstance(node, ast.SetComp) else found

    def _generate(self, node: Any, level: int, found: list[Any], values: Any) -> None:
        generator = node.generators[level]
        for item in items(self._closed(values, node)):
            self._step()
            self._assign(generator.target, item)
            if not all(self._closed(self.value(test), node) for test in generator.ifs):
                continue
            if level + 1 < len(node.generators):
                self._generate(node, level + 1, found, self.value(node.generators[level + 1].iter))
            elif isinstance(node, ast.DictComp):
                found.append((self.value(node.key), self.value(node.value)))
            else:
                found.append(self.value(node.elt))
