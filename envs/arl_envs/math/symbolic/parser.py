r"""Expressions in LaTeX, or in plain text, as trees.

    sum      = ["+" | "-"] product {("+" | "-") product}
    product  = power {("*" | "/" | \cdot | \times | nothing) power}     from left to right
    power    = atom {"!" | "^" operand | \degree}
    atom     = number | variable | \frac a b | \sqrt[n] a | function | "(" sum ")" | "|" sum "|"

A whole number directly before a fraction of whole numbers is a mixed number. Text outside of this
grammar (sums over an index, integrals, limits, derivatives) is no answer here.
"""

from __future__ import annotations

from fractions import Fraction

from .expression import Node, Unreadable, number
from .functions import FUNCTIONS, INVERSES, called
from .tokens import END, Token, tokenize

MAX_DEPTH = 50

_CONSTANTS = {"\\pi": "pi", "e": "e", "i": "i", "\\infty": "infty"}
_GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda",
    "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega", "Gamma", "Delta",
    "Theta", "Lambda", "Sigma", "Phi", "Psi", "Omega", "ell",
))  # fmt: skip
_STARTS = {"(", "{", "\\frac", "\\sqrt", "\\binom", "\\lfloor", "\\lceil", "\\text", *_CONSTANTS}
_STARTS |= {f"\\{name}" for name in FUNCTIONS | _GREEK}


def parse(text: str) -> Node:
    """Return the tree of `text`, as it is written.

    Raises:
        Unreadable: `text` is no expression of the grammar above, or too deep.
    """
    parser = _Parser(tokenize(text))
    node = parser.sum(0)
    if parser.peek() is not END:
        raise Unreadable(f"unexpected {parser.peek().text!a}")
    return node


class _Parser:
    """A recursive descent parser; `depth` counts the open brackets and operators."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._bars = 0

    def peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else END

    def take(self) -> Token:
        token = self.peek()
        self._at += 1
        return token

    def skip(self, *texts: str) -> bool:
        """Take the next token if it is one of `texts`; return whether it was."""
        found = self.peek().text in texts and self.peek() is not END
        self._at += found
        return found

    def expect(self, text: str) -> None:
        if not self.skip(text):
            raise Unreadable(f"expected {text!r}, got {self.peek().text or 'the end'!r}")

    def sum(self, depth: int) -> Node:
        _deeper(depth)
        terms = [self._term(depth)]
        while self.peek().text in ("+", "-"):
            self.skip("+")
            terms.append(self._term(depth))
        return terms[0] if len(terms) == 1 else Node("sum", tuple(terms))

    def _term(self, depth: int) -> Node:
        if self.skip("-"):
            return Node("negative", (self._product(depth + 1),))
        self.skip("+")
        return self._product(depth + 1)

    def _product(self, depth: int) -> Node:
        factors, level = [self._power(depth)], depth
        while True:
            if self.skip("*", "\\cdot", "\\times"):
                factors.append(self._factor(depth))
            elif self.skip("/"):
                level = _deeper(level)
                above = _product(factors)
                factors = [Node("quotient", (above, self._factor(depth)))]
            elif self._starts():
                if self.peek().kind == "number" and not self._is_closed(factors[-1]):
                    raise Unreadable("a number right behind a factor")
                factors.append(self._power(depth))
            else:
                return _product(factors)

    def _factor(self, depth: int) -> Node:
        if self.skip("-"):
            return Node("negative", (self._power(depth + 1),))
        return self._power(depth)

    def _starts(self) -> bool:
        token = self.peek()
        if token.text == "|":
            return self._bars == 0
        return token.kind in ("number", "letter") or token.text in _STARTS

    def _is_closed(self, factor: Node) -> bool:
        """Return whether a number may follow: 10!10! and 2^{3}5 are products, not x2 and 2^35."""
        last = self._tokens[self._at - 1].text
        return last == "!" or (factor.op in ("power", "binomial") and last == "}")

    def _power(self, depth: int) -> Node:
        node, level = self._atom(depth + 1), depth
        while True:
            if self.peek().text in ("!", "^", "\\degree"):
                level = _deeper(level)
            if self.skip("!"):
                node = Node("factorial", (node,))
            elif self.skip("^"):
                node = Node("power", (node, self._operand(depth + 1)))
                if self.peek().text == "^":
                    raise Unreadable("two exponents")
            elif self.skip("\\degree"):
                node = Node("quotient", (Node("product", (node, _PI)), number(180)))
            else:
                return node

    def _operand(self, depth: int) -> Node:
        """Return the operand of `^`, `\\frac` or `\\sqrt`: braces, or one token, or one digit."""
        _deeper(depth)
        self._split_digits(self._at)
        if self.peek().text == "-":
            self.take()
            return Node("negative", (self._operand(depth + 1),))
        return self._atom(depth + 1)

    def _split_digits(self, at: int) -> None:
        token = self._tokens[at] if at < len(self._tokens) else END
        if token.whole and len(token.text) > 1:
            digits = [Token("number", d, number(int(d)).value, True) for d in token.text]
            self._tokens[at : at + 1] = digits

    def _exponent_free(self, depth: int) -> Node:
        """Return a function's argument without parentheses: `\\sin 2x`, up to the next + or -."""
        factors = [self._power(depth)]
        while self._starts() and self.peek().text[1:] not in FUNCTIONS:
            factors.append(self._power(depth))
        return _product(factors)

    def _atom(self, depth: int) -> Node:
        _deeper(depth)
        token = self.take()
        if token.kind == "number":
            return self._number(token)
        if token.text in _CONSTANTS:
            return Node("constant", name=_CONSTANTS[token.text])
        if token.kind == "letter" or token.text[1:] in _GREEK:
            return Node("symbol", name=token.text + self._subscript())
        if token.text in _GROUPS:
            return self._group(token.text, depth)
        if token.text[1:] in FUNCTIONS:
            return self._function(token.text[1:], depth)
        if token.kind == "command":
            return self._command(token.text, depth)
        raise Unreadable(f"unexpected {token.text or 'end'!r}")

    def _number(self, token: Token) -> Node:
        assert token.value is not None
        if token.whole and (match := self._fraction()) is not None:
            above, below, end = match
            if above < below:
                self._at = end
                return number(token.value + above / below)
        return Node("number", value=token.value, decimal=not token.whole)

    def _fraction(self) -> tuple[Fraction, Fraction, int] | None:
        """Return the whole numbers of the fraction that comes next, and the index after it."""
        if self.peek().text != "\\frac":
            return None
        above, at = self._whole(self._at + 1)
        below, at = self._whole(at)
        return None if above is None or below is None else (above, below, at)

    def _whole(self, at: int) -> tuple[Fraction | None, int]:
        """Return the whole number at `at`, in braces or a single digit, and the index after it."""
        self._split_digits(at)
        texts = [token.text for token in self._tokens[at : at + 3]]
        braced = len(texts) == 3 and (texts[0], texts[2]) == ("{", "}")
        token = self._tokens[at + braced] if texts else END
        return token.value if token.whole else None, at + (3 if braced else 1)

    def _subscript(self) -> str:
        """Read _1, _{12} or _n: part of a variable's name."""
        primes = ""
        while self.skip("'"):
            primes += "'"
        if not self.skip("_"):
            return primes
        if not self.skip("{"):
            return f"_{self.take().text}{primes}"
        name = ""
        while self.peek().kind in ("number", "letter"):
            name += self.take().text
        self.expect("}")
        return f"_{name}{primes}"

    def _group(self, opening: str, depth: int) -> Node:
        closing, op = _GROUPS[opening]
        bars, self._bars = self._bars, 1 if opening == "|" else 0
        inner = self.sum(depth + 1)
        self._bars = bars
        self.expect(closing)
        return Node(op, (inner,)) if op else inner

    def _function(self, name: str, depth: int) -> Node:
        base: tuple[Node, ...] = ()
        exponent = None
        if self.skip("_"):
            base = (self._operand(depth + 1),)
        if self.skip("^"):
            exponent = self._operand(depth + 1)
        if self.peek().text in ("(", "{"):
            arguments = self._arguments(depth)
        else:
            arguments = (self._exponent_free(depth + 1),)
        if exponent == _MINUS_ONE and name in INVERSES and not base:
            name, exponent = f"arc{name}", None
        node = called(name, (*arguments, *base))
        if exponent is None:
            return node
        if exponent.op == "negative":  # an inverse function, or 1 over it
            raise Unreadable("a negative power of a function")
        return Node("power", (node, exponent))

    def _arguments(self, depth: int) -> tuple[Node, ...]:
        closing = ")" if self.take().text == "(" else "}"
        bars, self._bars = self._bars, 0
        found = [self.sum(depth + 1)]
        while self.skip(","):
            found.append(self.sum(depth + 1))
        self._bars = bars
        self.expect(closing)
        return tuple(found)

    def _command(self, name: str, depth: int) -> Node:
        match name:
            case "\\frac":
                return Node("quotient", (self._operand(depth + 1), self._operand(depth + 1)))
            case "\\binom":
                return Node("binomial", (self._operand(depth + 1), self._operand(depth + 1)))
            case "\\sqrt":
                degree = number(2)
                if self.skip("["):
                    degree = self.sum(depth + 1)
                    self.expect("]")
                return Node("root", (degree, self._operand(depth + 1)))
            case "\\text":  # a letter in another font
                self.expect("{")
                letter = self.take()
                self.expect("}")
                if letter.kind == "letter":
                    return Node("symbol", name=letter.text)
        raise Unreadable(f"not understood here: {name}")


_PI = Node("constant", name="pi")
_MINUS_ONE = Node("negative", (number(1),))
_GROUPS = {
    "(": (")", ""),
    "{": ("}", ""),
    "[": ("]", ""),
    "|": ("|", "abs"),
    "\\lfloor": ("\\rfloor", "floor"),
    "\\lceil": ("\\rceil", "ceiling"),
}


def _deeper(depth: int) -> int:
    """Return `depth` + 1, within a limit: recursive functions walk the parsed trees."""
    if depth > MAX_DEPTH:
        raise Unreadable(f"nested deeper than {MAX_DEPTH}")
    return depth + 1


def _product(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else Node("product", tuple(factors))
