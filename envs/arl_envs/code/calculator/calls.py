"""Calls: of the function under test, of helper functions of the row, and of Python's own."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from arl_envs.code.driver import Built, Keyword

from .allowed import BUILTINS, TYPES, NotComputable, items
from .lifting import Lifting
from .values import (
    ANSWER,
    ENTRY,
    Class,
    Every,
    Helper,
    Open,
    Returned,
    has_open,
    is_items,
    show,
)

MAX_CALLS = 50
"""The most nested calls of helper functions."""


class Calls(Lifting):
    """An evaluator of calls."""

    def _call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        args = self._elements(node.args)
        if any(keyword.arg is None for keyword in node.keywords):
            raise NotComputable(f"arguments by **: {show(node)}")
        named = {keyword.arg or "": self.value(keyword.value) for keyword in node.keywords}
        if function is ENTRY or isinstance(function, Class):
            parts = [*args, *(Keyword(name, value) for name, value in named.items())]
            given = copy.deepcopy([self._argument(part) for part in self._closed(parts, node)])
            if isinstance(function, Class):
                return Built(function.name, given, {})
            return Open(ast.Name(ANSWER, ast.Load()), given)
        if isinstance(function, Helper) and not (
            has_open(args) and isinstance(function.node, ast.Lambda)
        ):
            return self._called(function, args, named)
        if (
            function is BUILTINS["all"]
            and len(args) == 1
            and is_items(args[0])
            and has_open(args[0])
        ):
            return Every(list(args[0]))
        if not isinstance(function, Open) and not has_open([args, list(named.values())]):
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
                raise NotComputable(f"an unknown option of isclose: {sorted(unknown)}")
            bounds = named.get("rel_tol", 1e-9), named.get("abs_tol", 0.0)
            return replace(found, wanted=(args[0].node, args[1], *bounds))
        if function in (abs, self._modules["math"]["fabs"]) and args[0].difference:
            return replace(found, distance=args[0].difference)
        return found

    def _argument(self, value: Any) -> Any:
        """Return `value`, with types and functions as code for the submission's process."""
        if isinstance(value, Keyword):
            return Keyword(value.name, self._argument(value.value))
        if is_items(value):
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
            raise NotComputable(f"a call of an unknown function: {show(node)}")
        given = [self._function(arg) for arg in args]
        return function(*given, **{name: self._function(value) for name, value in named.items()})

    def _function(self, value: Any) -> Any:
        """Return `value`, but a function that the row defines as one that Python can call."""
        if isinstance(value, Helper):
            return lambda *args: self._closed(self._called(value, list(args), {}), value.node)
        return value

    def _helper(self, node: ast.FunctionDef | ast.Lambda) -> Helper:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            raise NotComputable(f"a decorated function: @{show(node.decorator_list[0])}")
        return Helper(node, list(self._scopes), [self.value(each) for each in node.args.defaults])

    def _called(self, helper: Helper, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        node = helper.node
        names = [arg.arg for arg in node.args.args]
        if node.args.vararg or node.args.kwarg or node.args.kwonlyargs or len(args) > len(names):
            raise NotComputable(f"the arguments of {show(node)}")
        bound = dict(zip(names[len(names) - len(helper.defaults) :], helper.defaults, strict=True))
        bound |= dict(zip(names, args, strict=False)) | dict(named)
        if set(bound) != set(names):
            raise NotComputable(f"the arguments of {show(node)}")
        scopes, self._scopes = self._scopes, [*helper.scopes, bound]
        num_asserted = len(self.asserted)
        self._depth += 1
        try:
            if self._depth > MAX_CALLS:
                raise NotComputable("functions that call each other too deeply")
            if isinstance(node, ast.Lambda):
                return self.value(node.body)
            self.run(node.body)
        except Returned as done:
            return done.value
        except NotComputable:
            if not has_open([*args, *named.values()]) or isinstance(node, ast.Lambda):
                raise
            del self.asserted[num_asserted:]
            return self._by_name(helper, node, args, named)
        finally:
            self._scopes, self._depth = scopes, self._depth - 1
        return None

    def _by_name(
        self, helper: Helper, node: ast.FunctionDef, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Return a call that depends on the answer as an expression, for the view to compute."""
        if named or helper.scopes[1:]:
            raise NotComputable(f"{node.name} depends on the returned value")
        found = self._joined(
            list(args), lambda parts: ast.Call(ast.Name(node.name, ast.Load()), parts, [])
        )
        return replace(found, helpers={**found.helpers, **self._sources(node.name)})

    def _elements(self, nodes: Sequence[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += items(self._closed(self.value(node.value), node))
            else:
                found.append(self.value(node))
        return found
