"""Wrong-by-one mutants of the reference solutions: do the hidden tests tell them apart?

    python -m tests.envs.code.mutants [FAMILY ...] [--variants 3]

prints a line for each family and the mutants that its tests miss.
"""

from __future__ import annotations

import argparse
import ast
import copy
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from arl_envs.code.families import FAMILIES, Args, Draw, Family, Parameters
from arl_envs.code.generated import Recipe
from arl_envs.code.problem import CallTest

NUM_HIDDEN = 20
NUM_FRESH = 400
"""Inputs that say whether a mutant that passes the hidden tests is wrong at all."""
CPU_LIMIT_S = 0.05
"""Of a call; references take less than 0.001."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Add,
    ast.Mod: ast.FloorDiv,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}

Change = Callable[[Any], None]
"""Changes a node in place."""


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Programs that differ from `source` in one place, each with a description."""
    tree = ast.parse(source)
    for index, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            other = copy.deepcopy(tree)
            target = next(itertools.islice(ast.walk(other), index, None))
            change(target)
            line = getattr(node, "lineno", 0)
            yield f"{line}: {ast.unparse(node)} -> {ast.unparse(target)}", ast.unparse(other)


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                if type(op) in COMPARISONS:
                    yield lambda n, i=i, op=op: n.ops.__setitem__(i, COMPARISONS[type(op)]())
        case ast.BinOp() | ast.AugAssign() if type(node.op) in OPERATORS:
            yield lambda n: setattr(n, "op", OPERATORS[type(n.op)]())
        case ast.BoolOp():
            yield lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda n: setattr(n, "operand", ast.UnaryOp(ast.Not(), n.operand))
        case ast.Constant(value=bool()):
            yield lambda n: setattr(n, "value", not n.value)
        case ast.Constant(value=int()):
            yield lambda n: setattr(n, "value", n.value + 1)
            yield lambda n: setattr(n, "value", n.value - 1)
        case ast.Name() if node.id in NAMES:
            yield lambda n: setattr(n, "id", NAMES[n.id])
        case ast.Call(func=ast.Name(id="range")):
            for i, bound in enumerate(node.args):
                if not isinstance(bound, ast.Constant):  # a constant is changed as one
                    yield lambda n, i=i: _shift(n.args, i, ast.Add())
                    yield lambda n, i=i: _shift(n.args, i, ast.Sub())


def _shift(values: list[ast.expr], index: int, op: ast.operator) -> None:
    values[index] = ast.BinOp(values[index], op, ast.Constant(1))


def hidden_tests(family: Family, parameters: Parameters, seed: int) -> list[tuple[Args, Any]]:
    """Those of a task, with their answers."""
    problem = Recipe(family, parameters, "call", seed).problem(num_hidden=NUM_HIDDEN)
    return [(tuple(t.args), t.expected) for t in problem.hidden if isinstance(t, CallTest)]


def fresh_inputs(family: Family, parameters: Parameters, rng: random.Random) -> Iterator[Args]:
    """The edges, and random inputs of all sizes from 0 on."""
    yield from family.edges(Draw(rng, family.largest, parameters))
    for i in range(NUM_FRESH):
        yield family.inputs(Draw(rng, i % (family.largest + 1), parameters))


def load(source: str, name: str) -> Callable[..., Any]:
    """The function called `name` of a submission."""
    names: dict[str, Any] = {"__name__": "submission"}
    exec(compile(source, "submission.py", "exec"), names)
    return names[name]


def fails(call: Callable[..., Any], args: Args, expected: Any) -> bool:
    """Whether a call raises, does not end, or gives anything but `expected`."""
    args = copy.deepcopy(args)
    signal.signal(signal.SIGVTALRM, _hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_S)
    try:
        value = call(*args)
    except (Exception, Hang):
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return type(value) is not type(expected) or value != expected


class Hang(BaseException):
    """A call that takes too long; no `except Exception` of a submission stops it."""


def _hang(*_: object) -> None:
    raise Hang


@dataclass
class Hunt:
    """What became of the mutants of a family."""

    num_caught: int = 0
    num_equivalent: int = 0
    survivors: list[str] = field(default_factory=list)
    """Wrong, and the hidden tests do not see it."""

    @property
    def caught(self) -> float:
        """The share of the wrong mutants that the hidden tests catch."""
        return self.num_caught / max(1, self.num_caught + len(self.survivors))

    def add(self, other: Hunt) -> None:
        self.num_caught += other.num_caught
        self.num_equivalent += other.num_equivalent
        self.survivors += other.survivors

    def __str__(self) -> str:
        missed = len(self.survivors)
        return (
            f"caught {self.caught:6.1%} ({self.num_caught}, {missed} missed, "
            f"{self.num_equivalent} equivalent)"
        )


def hunt(family: Family, *, num_variants: int = 3, seed: int = 0) -> Hunt:
    """Tries the mutants of some variants, chosen at random."""
    rng = random.Random(f"{family.name} {seed}")
    found = Hunt()
    for parameters in rng.sample(list(family.variants()), num_variants):
        hidden = hidden_tests(family, parameters, rng.getrandbits(53))
        fresh = _answered(family, parameters, fresh_inputs(family, parameters, rng))
        for description, source in mutants(family.source(parameters)):
            call = load(source, family.name)
            if any(fails(call, args, expected) for args, expected in hidden):
                found.num_caught += 1
            elif any(fails(call, args, expected) for args, expected in fresh):
                found.survivors.append(f"{dict(parameters)} {description}")
            else:
                found.num_equivalent += 1
    return found


def _answered(
    family: Family, parameters: Parameters, inputs: Iterator[Args]
) -> list[tuple[Args, Any]]:
    return [(args, family.answer(copy.deepcopy(args), parameters)) for args in inputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="names; all where none is given")
    parser.add_argument("--variants", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    total = Hunt()
    for name in given.families or FAMILIES:
        found = hunt(FAMILIES[name], num_variants=given.variants, seed=given.seed)
        print(f"{name:32} {found}")
        for survivor in found.survivors:
            print("   ", survivor)
        total.add(found)
    print(f"{'all':32} {total}")


if __name__ == "__main__":
    main()
