"""A small part of Python, computed without being executed: constants, loops, helper functions.

Assertions of data sets say with it what goes into a call and what is right. What the function
under test returns is not known then: it is `Open`, and so is all that depends on it. What is
asserted of it is kept as an expression, which `view_of` computes once the answer is there.
"""

from __future__ import annotations

import ast
import copy
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import allowed
from .allowed import BUILTINS, TYPES, Refused, attribute, items
from .driver import Built, Keyword, encode

MAX_STEPS, MAX_VIEW_STEPS = 500_000, 100_000
"""Of a row's tests, and of a look at one answer."""
MAX_CALLS = 50
"""Helper functions inside each other."""
ANSWER = "answer"

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


@dataclass(frozen=True)
class Open:
    """A value that depends on what a call of the function under test returns."""

    node: ast.expr
    """How it is computed from `answer`."""
    args: Sequence[Any]
    """The arguments of that call."""
    wanted: tuple[ast.expr, Any, float, float | None] | None = None
    """Where it says that something is equal to a value: both, and how far off it may be, relative
    and absolute (None: by rounding)."""
    difference: tuple[ast.expr, Any] | None = None
    """Where it is something less a value, or the reverse: both."""
    distance: tuple[ast.expr, Any] | None = None
    """Where it is the size of such a difference: both."""
    helpers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Functions that it takes, by name: their source."""


@dataclass(frozen=True)
class Every:
    """Open truths that all have to hold."""

    truths: Sequence[Any]


@dataclass(frozen=True)
class Approximate:
    """What `pytest.approx` gives."""

    value: Any
    relative: float
    absolute: float


def approximate(value: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> Approximate:
    """As `pytest.approx`, where `abs` alone means that nothing relative is allowed."""
    relative = (1e-6 if abs is None else 0.0) if rel is None else rel
    return Approximate(value, relative, 1e-12 if abs is None else abs)


@dataclass(frozen=True)
class Helper:
    """A function of the row's own."""

    node: ast.FunctionDef | ast.Lambda
    scopes: list[dict[str, Any]]
    defaults: Sequence[Any] = ()


@dataclass(frozen=True)
class Class:
    """A class that the submission has to define."""

    name: str


class _Entry:
    """The function under test."""


ENTRY = _Entry()


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


def view_of(source: str, answer: Any) -> Any:
    """What `source` says of the answer: functions, then one expression.

    Raises:
        Refused: it cannot be computed of this answer.
    """
    *functions, last = ast.parse(source).body
    assert isinstance(last, ast.Expr)
    calculator = Calculator({ANSWER: answer}, steps=MAX_VIEW_STEPS)
    return calculator.computed(lambda: (calculator.run(functions), calculator.value(last.value))[1])


class Calculator:
    """Computes values of expressions, and runs statements; `asserted` is what they said."""

    def __init__(self, names: Mapping[str, Any], *, steps: int = MAX_STEPS) -> None:
        self._modules = allowed.modules() | {"pytest": {"approx": approximate}}
        self._scopes: list[dict[str, Any]] = [dict(names)]
        self._steps, self._depth = steps, 0
        self.asserted: list[Open] = []

    def computed(self, work: Callable[[], Any]) -> Any:
        """What `work` gives.

        Raises:
            Refused: it does what this does not compute, takes too long, or raised an error.
        """
        try:
            return work()
        except Refused:
            raise
        except (_Break, _Continue, _Return) as error:
            raise Refused("a statement in the wrong place") from error
        except RecursionError as error:
            raise Refused("nested too deeply") from error
        except Exception as error:  # what Python itself raises where these values do not fit
            raise Refused(f"{type(error).__name__}: {error}") from error

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
                load = ast.parse(ast.unparse(target), mode="eval").body
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
                raise _Return(None if value is None else self.value(value))
            case ast.Break():
                raise _Break
            case ast.Continue():
                raise _Continue
            case _:
                raise Refused(f"a statement that would have to be executed: {show(node)}")

    def claim(self, truth: Any, node: ast.AST) -> None:
        """Note that `truth` has to hold."""
        if isinstance(truth, Every):
            for each in truth.truths:
                self.claim(each, node)
        elif isinstance(truth, Open):
            self.asserted.append(truth)
        elif not truth:
            raise Refused(f"it fails whatever is returned: {show(node)}")

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
            except _Continue:
                continue
            except _Break:
                return
        self.run(node.orelse)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Names that are not known are not bound: they are refused where they are used."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                if alias.name in self._modules:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._scopes[-1][name] = _Module(alias.name)
            elif alias.name in (found := self._modules.get(node.module or "", {})):
                self._scopes[-1][alias.asname or alias.name] = found[alias.name]

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                if self._scopes[-1].get(name) is ENTRY:
                    raise Refused(f"{name} is assigned to")
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
                    raise Refused(f"values for {show(target)}")
                for each, item in zip(targets, values, strict=True):
                    self._assign(each, item)
            case ast.Subscript(value=owner, slice=index):
                self._closed(self.value(owner), target)[self._closed(self.value(index), target)] = (
                    value
                )
            case ast.Attribute(value=owner, attr=name):
                built = self.value(owner)
                if not isinstance(built, Built):
                    raise Refused(f"an attribute that is set: {show(target)}")
                built.attributes[name] = value
            case _:
                raise Refused(f"assignment to {show(target)}")

    # -------------------------------------------------------------- expressions
    def value(self, node: ast.expr) -> Any:
        """The value of an expression; `Open` if it depends on the answer."""
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
                raise Refused(f"not a literal or a computation: {show(node)}")

    def _name(self, name: str) -> Any:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        if name in TYPES:
            return TYPES[name]
        if name in BUILTINS:
            return BUILTINS[name]
        if name in self._modules:
            return _Module(name)
        raise Refused(f"{name} is not known, nor a literal or a computation")

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
        alike = _is_items(left) and type(left) is type(right) and len(left) == len(right)
        if isinstance(op, ast.Eq) and alike and _has_open([left, right]):
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

    def _elements(self, nodes: Sequence[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += items(self._closed(self.value(node.value), node))
            else:
                found.append(self.value(node))
        return found

    def _display(
        self, nodes: Sequence[ast.expr], kind: Callable[[list[Any]], Any],
        build: Callable[[list[ast.expr]], ast.expr],
    ) -> Any:  # fmt: skip
        found = self._elements(nodes)
        if _has_open(found) and len({_key(each) for each in _opens(found)}) == 1:
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
        if isinstance(owner, _Module):
            if name in (found := self._modules[owner.name]):
                return found[name]
            raise Refused(f"{owner.name}.{name} is not known, nor a literal or a computation")
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
            closed.generators[0].iter = ast.Constant(None)  # which is open, and put in its place
            closed = _Closer(self, helpers).visit(closed)
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

    # -------------------------------------------------------------- calls
    def _call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        args = self._elements(node.args)
        if any(keyword.arg is None for keyword in node.keywords):
            raise Refused(f"arguments by **: {show(node)}")
        named = {keyword.arg or "": self.value(keyword.value) for keyword in node.keywords}
        if function is ENTRY or isinstance(function, Class):
            parts = [*args, *(Keyword(name, value) for name, value in named.items())]
            given = copy.deepcopy([self._argument(part) for part in self._closed(parts, node)])
            if isinstance(function, Class):
                return Built(function.name, given, {})
            return Open(ast.Name(ANSWER, ast.Load()), given)
        if isinstance(function, Helper) and not (
            _has_open(args) and isinstance(function.node, ast.Lambda)
        ):
            return self._called(function, args, named)
        if (
            function is BUILTINS["all"]
            and len(args) == 1
            and _is_items(args[0])
            and _has_open(args[0])
        ):
            return Every(list(args[0]))
        if not isinstance(function, Open) and not _has_open([args, list(named.values())]):
            return self._plain_call(node, function, args, named)
        if (
            len(args) == 2
            and function is self._modules["math"]["isclose"]
            and not isinstance(args[0], Open)
        ):
            args.reverse()
        found = self._joined(
            [*args, *named.values()],
            lambda parts: ast.Call(
                function.node
                if isinstance(function, Open)
                else self._lifted_function(node, function),
                parts[: len(args)],
                [ast.keyword(k, v) for k, v in zip(named, parts[len(args) :], strict=True)],
            ),
            [function] if isinstance(function, Open) else [],
        )
        if function is self._modules["math"]["isclose"] and not isinstance(args[1], Open):
            if unknown := set(named) - {"rel_tol", "abs_tol"}:
                raise Refused(f"an option of isclose that there is not: {sorted(unknown)}")
            bounds = named.get("rel_tol", 1e-9), named.get("abs_tol", 0.0)
            return replace(found, wanted=(args[0].node, args[1], *bounds))
        if function in (abs, self._modules["math"]["fabs"]) and args[0].difference:
            return replace(found, distance=args[0].difference)
        return found

    def _argument(self, value: Any) -> Any:
        """`value`; types and functions as what the submission's process evaluates."""
        if isinstance(value, Keyword):
            return Keyword(value.name, self._argument(value.value))
        if _is_items(value):
            return type(value)(self._argument(part) for part in value)
        if isinstance(value, type) or (callable(value) and not isinstance(value, Built)):
            return Built(ast.unparse(self._named(value)), None, {})
        if isinstance(value, Helper) and isinstance(value.node, ast.Lambda):
            return Built(ast.unparse(self._lifted(value, {})), None, {})
        return value

    def _plain_call(
        self, node: ast.Call, function: Any, args: list[Any], named: dict[str, Any]
    ) -> Any:
        if isinstance(function, type) and function.__name__ in TYPES:
            function = BUILTINS.get(function.__name__, function)
        if not callable(function) or isinstance(function, Class | Built):
            raise Refused(f"a call of what is not known: {show(node)}")
        given = [self._function(arg) for arg in args]
        return function(*given, **{name: self._function(value) for name, value in named.items()})

    def _function(self, value: Any) -> Any:
        """`value`, if it is a function of the row's own, as one that Python can call."""
        if isinstance(value, Helper):
            return lambda *args: self._closed(self._called(value, list(args), {}), value.node)
        return value

    def _helper(self, node: ast.FunctionDef | ast.Lambda) -> Helper:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            raise Refused(f"a decorated function: @{show(node.decorator_list[0])}")
        return Helper(node, list(self._scopes), [self.value(each) for each in node.args.defaults])

    def _called(self, helper: Helper, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        node = helper.node
        names = [arg.arg for arg in node.args.args]
        if node.args.vararg or node.args.kwarg or node.args.kwonlyargs or len(args) > len(names):
            raise Refused(f"the arguments of {show(node)}")
        bound = dict(zip(names[len(names) - len(helper.defaults) :], helper.defaults, strict=True))
        bound |= dict(zip(names, args, strict=False)) | dict(named)
        if set(bound) != set(names):
            raise Refused(f"the arguments of {show(node)}")
        scopes, self._scopes = self._scopes, [*helper.scopes, bound]
        num_asserted = len(self.asserted)
        self._depth += 1
        try:
            if self._depth > MAX_CALLS:
                raise Refused("functions that call each other too deeply")
            if isinstance(node, ast.Lambda):
                return self.value(node.body)
            self.run(node.body)
        except _Return as done:
            return done.value
        except Refused:
            if not _has_open([*args, *named.values()]) or isinstance(node, ast.Lambda):
                raise
            del self.asserted[num_asserted:]
            return self._by_name(helper, node, args, named)
        finally:
            self._scopes, self._depth = scopes, self._depth - 1
        return None

    def _by_name(
        self, helper: Helper, node: ast.FunctionDef, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """A call whose course depends on the answer: it is left to the view."""
        if named or helper.scopes[1:]:
            raise Refused(f"{node.name} depends on what is returned")
        found = self._joined(
            list(args), lambda parts: ast.Call(ast.Name(node.name, ast.Load()), parts, [])
        )
        return replace(found, helpers={**found.helpers, **self._sources(node.name)})

    def _sources(self, name: str, known: Sequence[str] = ()) -> dict[str, str]:
        """The source of a helper, and of those that it calls."""
        helper = self._scopes[0].get(name)
        if not isinstance(helper, Helper) or name in known:
            return {}
        found = {name: ast.unparse(helper.node)}
        for inner in ast.walk(helper.node):
            if isinstance(inner, ast.Name) and inner.id != name:
                if isinstance(
                    self._scopes[0].get(inner.id), Open | list | dict | int | float | str
                ):
                    raise Refused(f"{name} takes {inner.id} from outside")
                found |= self._sources(inner.id, [*known, name])
        return found

    # -------------------------------------------------------------- what is open
    def _open(self, value: Open, node: ast.expr | None = None) -> Open:
        return Open(node or value.node, value.args, helpers=value.helpers)

    def _joined(
        self,
        values: Sequence[Any],
        build: Callable[[list[ast.expr]], ast.expr],
        also: Sequence[Open] = (),
    ) -> Open:
        """An open value that is made of several, which are open or not."""
        opens = [*_opens(values), *also]
        if len({_key(each) for each in opens}) > 1:
            raise Refused("several calls of the function in one comparison")
        helpers: dict[str, str] = {}
        for each in opens:
            helpers |= each.helpers
        node = build([self._lifted(value, helpers) for value in values])
        return Open(node, opens[0].args, helpers=helpers)

    def _lifted(self, value: Any, helpers: dict[str, str]) -> ast.expr:
        """An expression that gives `value` anywhere.

        Raises:
            Refused: there is none.
        """
        if isinstance(value, Open):
            return value.node
        if isinstance(value, Helper):
            if isinstance(value.node, ast.Lambda):
                return _Closer(self, helpers).visit(copy.deepcopy(value.node))
            helpers |= self._sources(value.node.name)
            return ast.Name(value.node.name, ast.Load())
        if isinstance(value, list | tuple) and _has_open(value):
            parts = [self._lifted(each, helpers) for each in value]
            return (
                ast.List(parts, ast.Load())
                if isinstance(value, list)
                else ast.Tuple(parts, ast.Load())
            )
        if isinstance(value, type) or callable(value):
            return self._named(value)
        encode(value)
        return ast.parse(repr(value), mode="eval").body

    def _named(self, function: Any) -> ast.expr:
        for table in (TYPES, BUILTINS):
            for name, known in table.items():
                if known is function:
                    return ast.Name(name, ast.Load())
        for module, table in self._modules.items():
            for name, known in table.items():
                if known is function:
                    return ast.Attribute(ast.Name(module, ast.Load()), name, ast.Load())
        raise Refused(f"a call of what is not known: {function!r:.60}")

    def _lifted_function(self, node: ast.Call, function: Any) -> ast.expr:
        if isinstance(function, Helper):
            return self._lifted(function, {})
        if isinstance(node.func, ast.Attribute):  # a method of a value
            try:
                return self._named(function)
            except Refused:
                owner = self._lifted(self.value(node.func.value), {})
                return ast.Attribute(owner, node.func.attr, ast.Load())
        return self._named(function)

    def _closed(self, value: Any, node: ast.AST | Any, *, deep: bool = True) -> Any:
        """`value`, which must not depend on the answer."""
        if isinstance(value, Open | Every) or (deep and _has_open(value)):
            raise Refused(f"it depends on what is returned: {show(node)}")
        return value

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise Refused("it takes too long to compute")


class _Module:
    def __init__(self, name: str) -> None:
        self.name = name


class _Closer(ast.NodeTransformer):
    """Puts values in the place of names that are not bound in the expression itself."""

    def __init__(self, calculator: Calculator, helpers: dict[str, str]) -> None:
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
        if isinstance(value, _Module) or node.id in BUILTINS or node.id in TYPES:
            return node
        return self._calculator._lifted(value, self._helpers)  # pyright: ignore[reportPrivateUsage]


def _is_items(value: Any) -> bool:
    return type(value) in (list, tuple)


def _opens(value: Any) -> list[Open]:
    if isinstance(value, Open):
        return [value]
    if isinstance(value, Every):
        return [each for truth in value.truths for each in _opens(truth)]
    return [each for part in value for each in _opens(part)] if _is_items(value) else []


def _has_open(value: Any) -> bool:
    return bool(_opens(value))


def _key(value: Open) -> str:
    return json.dumps(encode(list(value.args)))


def show(node: Any) -> str:
    """Some eighty characters of the source of `node`, for an error message."""
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError, AttributeError):  # too deep, or a number too long to write
        text = type(node).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
