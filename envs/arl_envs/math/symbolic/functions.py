"""The functions that expressions may call; some stand for others: arcsec, coth, arcsinh."""

from __future__ import annotations

from .expression import Node, Unreadable, number

_CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")
_HYPERBOLIC = ("sinh", "cosh", "tanh")
INVERSES = frozenset((*_CIRCULAR, *_HYPERBOLIC))
"""The functions f whose inverse is written f^{-1}: 1/sin is written csc."""
_RECIPROCALS = {"coth": "tanh", "sech": "cosh", "csch": "sinh"}
FUNCTIONS = frozenset((
    *_CIRCULAR, *_HYPERBOLIC, *_RECIPROCALS, *(f"arc{name}" for name in INVERSES),
    "exp", "ln", "log", "gcd", "lcm", "max", "min",
))  # fmt: skip


def called(name: str, args: tuple[Node, ...]) -> Node:
    """Return the call of `name`, by functions that `numeric` and `exact` know.

    The principal values: arccot is in (0, pi), arcsec x is arccos 1/x (DLMF 4.23, 4.37).

    Raises:
        Unreadable: the function takes another number of arguments.
    """
    if name == "exp" and len(args) == 1:
        return Node("power", (Node("constant", name="e"), args[0]))
    if name in _RECIPROCALS and len(args) == 1:
        return Node("quotient", (_ONE, Node("call", args, _RECIPROCALS[name])))
    if name in _BY_OTHERS:
        if len(args) != 1:
            raise Unreadable(f"{name} of {len(args)}")
        return _BY_OTHERS[name](args[0])
    return Node("call", args, name)


_ONE = number(1)
_HALF_PI = Node("quotient", (Node("constant", name="pi"), number(2)))


def _sum(*terms: Node) -> Node:
    return Node("sum", terms)


def _minus(term: Node) -> Node:
    return Node("negative", (term,))


def _over(above: Node, below: Node) -> Node:
    return Node("quotient", (above, below))


def _ln(inside: Node) -> Node:
    return Node("call", (inside,), "ln")


def _ln_of_root(x: Node, last: Node) -> Node:
    square = Node("power", (x, number(2)))
    return _ln(_sum(x, Node("root", (number(2), _sum(square, last)))))


_BY_OTHERS = {
    "arcsec": lambda x: Node("call", (_over(_ONE, x),), "arccos"),
    "arccsc": lambda x: Node("call", (_over(_ONE, x),), "arcsin"),
    "arccot": lambda x: _sum(_HALF_PI, _minus(Node("call", (x,), "arctan"))),
    "arcsinh": lambda x: _ln_of_root(x, _ONE),
    "arccosh": lambda x: _ln_of_root(x, _minus(_ONE)),
    "arctanh": lambda x: _over(_ln(_over(_sum(_ONE, x), _sum(_ONE, _minus(x)))), number(2)),
}
