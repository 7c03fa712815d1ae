"""The form of an expression: a sum of so many terms, a product of such factors."""

from __future__ import annotations

from .expression import Node, numeral, symbols

_TERMS = ("sum", "negative", "product")


def form(node: Node) -> str:
    """Return a word that two expressions share if they look alike; `node` must be `canonical`.

    Order, signs and rational coefficients are left out: (x+2)(x+3), (x+3)(2+x) and (x-2)(x-3) look
    alike, x^2+5x+6 does not. For an expression without variables, only its roots and constants
    count, each with its place in a numerator or denominator.
    """
    if node.op == "negative":
        return form(node.args[0])
    if not symbols(node):
        return f"number {sorted(_blocks(node, False))}"
    if node.op == "sum":
        return f"sum {sorted(map(form, node.args))}"
    if node.op in ("product", "quotient"):
        return _product(node)
    if node.op == "power":
        return f"power {form(node.args[0])} {node.args[1]}"
    return repr(node)


def operations(node: Node) -> int:
    """Return the number of operations to carry out, without signs and the fractions of numbers."""
    if not node.args or numeral(node) is not None:
        return 0
    own = {"sum": len(node.args) - 1, "product": len(node.args) - 1, "negative": 0}.get(node.op, 1)
    return own + sum(map(operations, node.args))


def _product(node: Node) -> str:
    above, below = node.args if node.op == "quotient" else (node, None)
    factors = list(above.args if above.op == "product" else (above,))
    divisors = [] if below is None else list(below.args if below.op == "product" else (below,))
    kept = [factor for factor in factors if numeral(factor) is None]
    under = [divisor for divisor in divisors if numeral(divisor) is None]
    if len(kept) == 1 and not under and (len(factors) == 1 or kept[0].op != "sum"):
        return form(kept[0])  # (x+6)/2 is x/2+3, but 2(x+3) is not 2x+6
    return f"product {sorted(map(form, kept))} / {sorted(map(form, under))}"


def _blocks(node: Node, below: bool) -> set[str]:
    """Return the roots, constants and the like, marked with 1/ in a denominator."""
    if node.op == "number":
        return set()
    if node.op == "quotient":
        return _blocks(node.args[0], below) | _blocks(node.args[1], not below)
    if node.op not in _TERMS:
        return {f"{'1/' * below}{node}"}
    found = {block for arg in node.args for block in _blocks(arg, below)}
    irrational = [arg for arg in node.args if numeral(arg) is None]
    if node.op == "product" and len(irrational) > 1 and any(a.op == "sum" for a in irrational):
        found.add("not multiplied out")
    return found
