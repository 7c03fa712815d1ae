"""A kind of programming task: a statement, a reference solution, and endless random inputs."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import itertools
import math
import random
import string
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from agentgym_rl.runtime import parse_python

Topic = Literal["strings", "arrays", "dynamic programming", "graphs", "parsing", "numbers"]

Parameters = Mapping[str, int | str]
Args = tuple[Any, ...]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Draw:
    """The source of a family's random inputs."""

    rng: random.Random
    size: int
    """The size of the input, from 0: the length of a list or string, the number of nodes."""
    parameters: Parameters

    def number(self, name: str) -> int:
        """Return a parameter that is a number."""
        return int(self.parameters[name])

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def integers(self, low: int, high: int, *, length: int | None = None) -> list[int]:
        """Return `length` integers, or `size` of them by default."""
        return [self.rng.randint(low, high) for _ in range(self._length(length))]

    def word(self, alphabet: str = string.ascii_lowercase, *, length: int | None = None) -> str:
        return "".join(self.rng.choices(alphabet, k=self._length(length)))

    def words(
        self, alphabet: str = string.ascii_lowercase, *, longest: int = 6, length: int | None = None
    ) -> list[str]:
        """Return words of 1 to `longest` letters."""
        return [
            self.word(alphabet, length=self.rng.randint(1, longest))
            for _ in range(self._length(length))
        ]

    def pairs(
        self, nodes: int, count: int, *, near: int | None = None, loops: bool = True
    ) -> list[list[int]]:
        """Return edges between nodes 0 to `nodes` - 1, as [a, b], at most `near` apart; if `loops`,
        a may be b. The list is empty if no pair is possible."""
        reach = nodes if near is None else near
        possible = [
            (a, b)
            for a in range(nodes)
            for b in range(max(0, a - reach), min(nodes, a + reach + 1))
            if loops or a != b
        ]
        return [list(pair) for pair in self.rng.choices(possible, k=count)] if possible else []

    def weighted_pairs(
        self, nodes: int, count: int, *, near: int | None = None, heaviest: int = 20
    ) -> list[list[int]]:
        """Return edges with a weight of 1 to `heaviest` each, as [a, b, weight]."""
        return [[*pair, self.integer(1, heaviest)] for pair in self.pairs(nodes, count, near=near)]

    def matrix(self, rows: int, columns: int, low: int, high: int) -> list[list[int]]:
        return [self.integers(low, high, length=columns) for _ in range(rows)]

    def runs(self, items: Sequence[Item], *, longest: int) -> list[Item]:
        """Return `size` items drawn from `items`, each 1 to `longest` times in a row."""
        drawn: list[Item] = []
        while len(drawn) < self.size:
            drawn += [self.rng.choice(items)] * self.rng.randint(1, longest)
        return drawn[: self.size]

    def _length(self, length: int | None) -> int:
        return self.size if length is None else length


@dataclass(frozen=True, slots=True)
class Family:
    """A family of tasks, made by `@family` from a reference solution."""

    topic: Topic
    reference: Callable[..., Any]
    """The reference solution, which takes the inputs by position and the parameters by name. A
    reference is pure, self-contained (imports inside it), fast (below 1 ms at the largest size),
    and never changes its arguments."""
    choices: Mapping[str, Sequence[int] | Sequence[str]]
    """The values each parameter may have."""
    inputs: Callable[[Draw], Args]
    edges: Callable[[Draw], Sequence[Args]]
    """The inputs that every hidden test set contains, as careless solutions get these wrong; drawn
    at the largest size."""
    largest: int
    """The largest size that inputs are drawn at."""

    @property
    def name(self) -> str:
        """Return the family's name, which is also the name of the function to write."""
        return self.reference.__name__

    @property
    def num_variants(self) -> int:
        return math.prod(len(values) for values in self.choices.values())

    def variants(self) -> Iterator[Parameters]:
        """Yield every choice of parameters."""
        for values in itertools.product(*self.choices.values()):
            yield dict(zip(self.choices, values, strict=True))

    def statement(self, parameters: Parameters) -> str:
        """Return the statement, without the form of input and output."""
        text = " ".join(inspect.cleandoc(self.reference.__doc__ or "").split())
        return text.format(**parameters)

    def answer(self, args: Args, parameters: Parameters) -> Any:
        """Return the right answer."""
        return self.reference(*args, **parameters)

    @property
    def argument_types(self) -> dict[str, Any]:
        """Return the types of the inputs by name, in order."""
        hints = _hints(self.reference)
        return {n: t for n, t in hints.items() if n != "return" and n not in self.choices}

    @property
    def return_type(self) -> Any:
        return _hints(self.reference)["return"]

    def source(self, parameters: Parameters) -> str:
        """Return the reference solution as a submission: a function that takes the inputs alone."""
        tree = copy.deepcopy(_submitted(self.reference))
        given = [
            ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value))
            for name, value in parameters.items()
        ]
        tree.body = [*given, *tree.body]
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


@functools.cache
def _hints(reference: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(reference)


@functools.cache
def _submitted(reference: Callable[..., Any]) -> ast.FunctionDef:
    """Return the reference without the parts that a submission lacks: decorator, statement,
    parameters."""
    (tree,) = parse_python(textwrap.dedent(inspect.getsource(reference))).body
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    tree.body = tree.body[1:]
    tree.args.kwonlyargs, tree.args.kw_defaults = [], []
    return tree


def family(
    topic: Topic,
    *,
    inputs: Callable[[Draw], Args],
    edges: Callable[[Draw], Sequence[Args]] = lambda draw: (),
    largest: int = 24,
    **choices: Sequence[int] | Sequence[str],
) -> Callable[[Callable[..., Any]], Family]:
    """Return a decorator that makes a family from a reference solution.

    The docstring is the statement, with `{name}` for each parameter; `choices` gives the values a
    parameter may have. Arguments and result are `int`, `bool`, `str`, `list[int]`, `list[str]`
    or `list[list[int]]`.
    """

    def make(reference: Callable[..., Any]) -> Family:
        return Family(topic, reference, choices, inputs, edges, largest)

    return make
