"""LaTeX of a tree, in a form with only one reading."""

from __future__ import annotations

from .expression import Node, numeral


def write(node: Node) -> str:
    """Return LaTeX of `node`, with every operand in brackets and decimals as exact fractions."""
    args = [write(arg) for arg in node.args]
    match node.op:
        case "number":
            assert node.value is not None
            above, below = node.value.numerator, node.value.denominator
            return str(above) if below == 1 else rf"\frac{{{above}}}{{{below}}}"
        case "symbol":
            name, _, index = node.name.partition("_")
            return f"{name}_{{{index}}}" if index else name
        case "constant":
            return {"pi": r"\pi", "infty": r"\infty"}.get(node.name, node.name)
        case "sum":
            return " + ".join(f"({arg})" for arg in args)
        case "negative":
            return f"-({args[0]})"
        case "product":
            return r" \cdot ".join(f"({arg})" for arg in args)
        case "quotient":
            return rf"\frac{{{args[0]}}}{{{args[1]}}}"
        case "power":
            return f"({args[0]})^{{{args[1]}}}"
        case "root" if _is_odd_root_of_negative(node):
            return rf"-(\sqrt[{args[0]}]{{{write(node.args[1].args[0])}}})"
        case "root":
            return rf"\sqrt[{args[0]}]{{{args[1]}}}"
        case "factorial":
            return f"({args[0]})!"
        case "binomial":
            return rf"\binom{{{args[0]}}}{{{args[1]}}}"
        case "abs":
            return rf"\left|{args[0]}\right|"
        case "floor" | "ceiling":
            side = "floor" if node.op == "floor" else "ceil"
            return rf"\l{side} {args[0]} \r{side}"
        case "call" if node.name == "log" and len(args) == 2:
            return rf"\log_{{{args[1]}}}({args[0]})"
        case _:
            return rf"\{node.name}({', '.join(args)})"


def _is_odd_root_of_negative(node: Node) -> bool:
    """Return whether the root is like that of -8 with degree 3: real, -2, not the principal one."""
    degree, radicand = node.args
    odd = degree.value is not None and degree.value.denominator == 1 and degree.value % 2 == 1
    return odd and radicand.op == "negative" and numeral(radicand) is not None
