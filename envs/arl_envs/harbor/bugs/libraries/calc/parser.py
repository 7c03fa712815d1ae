"""The tree of an expression: ("number", 1), ("name", "a"), (sign, left, right)."""

from .tokens import tokenize


class Parser:
    """A reader of tokens, from left to right."""

    def __init__(self, text):
        self.tokens = tokenize(text)
        self.place = 0

    def peek(self):
        """Return the text of the next token; "" at the end."""
        if self.place < len(self.tokens):
            return self.tokens[self.place][1]
        return ""

    def take(self):
        """Return the next token and go past it; raise ValueError at the end."""
        if self.place >= len(self.tokens):
            raise ValueError("unexpected end")
        token = self.tokens[self.place]
        self.place += 1
        return token

    def sum(self):
        """Read products with + and - between them."""
        tree = self.product()
        while self.peek() and self.peek() in "+-":
            sign = self.take()[1]
            tree = (sign, tree, self.product())
        return tree

    def product(self):
        """Read factors with * and / between them."""
        tree = self.factor()
        while self.peek() and self.peek() in "*/":
            sign = self.take()[1]
            tree = (sign, tree, self.factor())
        return tree

    def factor(self):
        """Read a number, a name, a bracket, or a factor after a minus."""
        kind, text = self.take()
        if kind == "number":
            return ("number", int(text))
        if kind == "name":
            return ("name", text)
        if text == "-":
            return ("-", ("number", 0), self.factor())
        if text == "(":
            tree = self.sum()
            if self.take()[1] != ")":
                raise ValueError("a bracket is open")
            return tree
        raise ValueError(f"unexpected {text}")


def parse(text):
    """Return the tree of a whole text; raise ValueError if something is left over."""
    parser = Parser(text)
    tree = parser.sum()
    if parser.peek():
        raise ValueError(f"left over: {parser.peek()}")
    return tree
