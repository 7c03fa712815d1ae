"""Small programs with their cases: played in this process, shown as unit tests, packed as files."""

from __future__ import annotations

import ast
import builtins
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from agentgym_rl.runtime import parse_python
from arl_envs.harbor.harness import Unfit, decode, encode

MAX_TICKS = 10_000
"""The most loop turns and calls of a case: a program that takes more is called endless."""
MAX_SIZE = 10_000
"""The most bits or items of what is added up: a program that reaches more is called endless."""

Step = Mapping[str, Any]
Case = Sequence[Step]
"""Calls in order; the methods belong to the object that the last "new" made."""


def call(target: str, *args: Any) -> Step:
    """Return the step that calls "module:function"."""
    return {"call": target, "args": encode(list(args))}


def new(target: str, *args: Any) -> Step:
    """Return the step that makes an object of "module:Class"."""
    return {"new": target, "args": encode(list(args))}


def do(method: str, *args: Any) -> Step:
    """Return the step that calls a method of the object."""
    return {"method": method, "args": encode(list(args))}


@dataclass(frozen=True, slots=True)
class Program:
    """A small repository that is right, apart from its tests."""

    library: str
    about: str
    """The purpose of the program, for the README."""
    modules: Mapping[str, str]
    """The sources by path."""
    shown: Mapping[str, Sequence[Case]]
    """The cases of each visible test, by the test's name."""
    hidden: Sequence[Case]

    def changed(self, modules: Mapping[str, str]) -> Program:
        """Return the program with other sources for some of its files."""
        merged = {**self.modules, **modules}
        return Program(self.library, self.about, merged, self.shown, self.hidden)


class Endless(BaseException):
    """A case that takes too many turns."""


class _Bounded(ast.NodeTransformer):
    """A counter in every loop and function, and a bound on sums and products."""

    def _counted(self, node: Any) -> Any:
        self.generic_visit(node)
        tick = ast.Expr(ast.Call(ast.Name("__tick__", ast.Load()), [], []))
        node.body.insert(0, ast.fix_missing_locations(ast.copy_location(tick, node.body[0])))
        return node

    visit_For = visit_While = visit_FunctionDef = _counted

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        return self._grown(node, node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        grown = self._grown(node, read, node.value)
        return node if grown is node else ast.copy_location(ast.Assign([node.target], grown), node)

    def _grown(self, node: Any, left: ast.expr, right: ast.expr) -> Any:
        if not isinstance(node.op, ast.Add | ast.Mult):
            return node
        prefix = "i" if isinstance(node, ast.AugAssign) else ""
        name = prefix + ("add" if isinstance(node.op, ast.Add) else "mul")
        grow = ast.Call(ast.Name("__grow__", ast.Load()), [ast.Constant(name), left, right], [])
        return ast.fix_missing_locations(ast.copy_location(grow, node))


def _grow(name: str, left: Any, right: Any) -> Any:
    """Return a sum or product that is not too large."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, int) and one.bit_length() > MAX_SIZE:
            raise Endless
        if isinstance(one, str | list | tuple):
            factor = other if isinstance(other, int) else 1
            if len(one) * factor > MAX_SIZE:
                raise Endless
    return getattr(operator, name)(left, right)


@functools.lru_cache(maxsize=256)
def _compiled(name: str, text: str) -> CodeType:
    return compile(_Bounded().visit(parse_python(text)), f"<{name}>", "exec")


class Running:
    """The modules of a program in memory, apart from all other modules."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._ticks = 0
        self._sources = {
            path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): text
            for path, text in modules.items()
        }
        self._modules: dict[str, ModuleType] = {}

    def outcomes(self, case: Case) -> list[dict[str, Any]]:
        """Return the outcome of each step, in the form of the harness.

        Raises:
            Endless: a step takes too many turns, or too deep a recursion.
        """
        self._ticks = 0
        current: Any = None
        outcome: list[dict[str, Any]] = []
        for step in case:
            try:
                value = self._target(step, current)(*decode(step["args"]))
                if "new" in step:
                    current, value = value, None
                outcome.append({"value": encode(value)})
            except Unfit as error:
                outcome.append({"unfit": str(error)})
            except RecursionError as error:
                raise Endless from error
            except Exception as error:
                outcome.append({"raises": type(error).__name__})
        return outcome

    def _target(self, step: Step, current: Any) -> Any:
        if "method" in step:
            return getattr(current, step["method"])
        module, _, name = (step.get("call") or step["new"]).partition(":")
        return getattr(self._module(module), name)

    def _module(self, name: str) -> ModuleType:
        if name not in self._modules:
            module = self._modules[name] = ModuleType(name)
            known = {**vars(builtins), "__import__": self._import, "__tick__": self._tick}
            known["__grow__"] = _grow
            module.__dict__["__builtins__"] = known
            exec(_compiled(name, self._sources[name]), module.__dict__)
        return self._modules[name]

    def _import(
        self, name: str, names: Any = None, local: Any = None, wanted: Any = (), level: int = 0
    ) -> Any:
        package = next(iter(self._sources)).partition(".")[0]
        full = f"{package}.{name}" if level else name
        return self._module(full) if full in self._sources else __import__(name, fromlist=["_"])

    def _tick(self) -> None:
        self._ticks += 1
        if self._ticks > MAX_TICKS:
            raise Endless


def differing(
    right: Mapping[str, str], wrong: Mapping[str, str], cases: Sequence[Case]
) -> set[int]:
    """Return the indices of the cases with different outcomes.

    Raises:
        Endless: a case does not end in one of the two.
        SyntaxError, NameError: a program cannot be loaded.
    """
    one, other = Running(right), Running(wrong)
    return {
        index
        for index, case in enumerate(cases)
        if [_plain(outcome) for outcome in one.outcomes(case)]
        != [_plain(outcome) for outcome in other.outcomes(case)]
    }


def _plain(outcome: dict[str, Any]) -> Any:
    """Return an outcome in the form in which Python compares it: 1 equals True, in a unit test,
    too."""
    return ("value", decode(outcome["value"])) if "value" in outcome else outcome


def unit_tests(program: Program) -> str:
    """Return the text of the visible tests, with the outcomes of `program`."""
    running = Running(program.modules)
    bodies: list[str] = []
    names: dict[str, set[str]] = {}
    for name, cases in program.shown.items():
        lines = [f"    def {name}(self):"]
        for case in cases:
            lines += _asserted(case, running.outcomes(case))
            for step in case:
                if target := step.get("call") or step.get("new"):
                    module, _, imported = target.partition(":")
                    names.setdefault(module, set()).add(imported)
        bodies.append("\n".join(lines))
    imports = [
        f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)
    ]
    head = ["import unittest", "", *imports, "", "", "class Tests(unittest.TestCase):"]
    return "\n".join(head) + "\n" + "\n\n".join(bodies) + "\n"


def _asserted(case: Case, outcomes: Sequence[Mapping[str, Any]]) -> list[str]:
    lines: list[str] = []
    for step, outcome in zip(case, outcomes, strict=True):
        args = ", ".join(map(repr, decode(step["args"])))
        target = f"it.{step['method']}" if "method" in step else (step.get("call") or step["new"])
        spoken = f"{target.rpartition(':')[2]}({args})"
        if "raises" in outcome:
            lines += [f"with self.assertRaises({outcome['raises']}):", f"    {spoken}"]
        elif "new" in step:
            lines.append(f"it = {spoken}")
        else:
            lines.append(f"self.assertEqual({spoken}, {decode(outcome['value'])!r})")
    return [" " * 8 + line for line in lines]
