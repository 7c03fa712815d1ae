"""Texts that are evaluated, of the topic parsing."""

from __future__ import annotations

from .family import Args, Draw, Family, family


def _expression(draw: Draw) -> Args:
    """Return a valid expression with about `size` signs at most."""

    def make(length: int) -> str:
        if length < 3:
            return str(draw.integer(0, 9 if draw.integer(0, 3) else 25))
        used = draw.integer(1, length - 2)
        text = make(used) + draw.word("+-*", length=1) + make(length - used - 1)
        return f"({text})" if draw.integer(0, 3) == 0 else text

    return (make(draw.size),)


def _mixed(tight: str) -> str:
    """Return operators that bind loosely and tightly, in brackets and outside of these."""
    loose = next(op for op in "-*+" if op not in tight)
    return "9t(3l4t5t7)l(8t2l6)".replace("t", tight[-1]).replace("l", loose)


@family(
    "parsing",
    tight=("*", "+", "-", "+ and *", "- and *", "+ and -"),
    side=("left: a-b-c means (a-b)-c", "right: a-b-c means a-(b-c)"),
    inputs=_expression,
    edges=lambda draw: [
        ("10",),
        ("((7-(1+2)))",),
        ("9-5-3+2-1",),
        ("2+3*4-5*6+7",),
        ("2*3-4*5-6",),
        (_mixed(str(draw.parameters["tight"])),),
    ],
)
def evaluate_expression(text: str, *, tight: str, side: str) -> int:
    """`text` is an expression of whole numbers, the operators +, - and *, and round brackets,
    without blanks. What binds tighter than the other operators: {tight}. Operators that bind
    equally are grouped from the {side}. Return the value.
    """
    values: list[int] = []
    waiting: list[str] = []

    def binds(op: str) -> bool:
        return op in tight

    def apply() -> None:
        b, a, op = values.pop(), values.pop(), waiting.pop()
        values.append(a + b if op == "+" else a - b if op == "-" else a * b)

    number = ""
    for c in text + ")":
        if c.isdigit():
            number += c
            continue
        if number:
            values.append(int(number))
            number = ""
        if c == "(":
            waiting.append(c)
            continue
        while waiting and waiting[-1] != "(":
            if c != ")" and binds(c) == binds(waiting[-1]) and side.startswith("right"):
                break
            if c != ")" and binds(c) and not binds(waiting[-1]):
                break
            apply()
        if c != ")":
            waiting.append(c)
        elif waiting:
            waiting.pop()
    return values[0]


@family(
    "parsing",
    plus=(2, 3, 4),
    few=(1, 2, 3),
    inputs=lambda draw: (
        " ".join(
            str(draw.integer(0, 30)) if draw.integer(0, 9) < 6 else draw.word("+<-", length=1)
            for _ in range(draw.size)
        ),
    ),
    edges=lambda draw: [
        ("",),
        ("12",),
        ("- 3 10",),
        ("+ 1 2 4 8 16",),
        ("< - 1 9 7 3 2",),
        ("- 9 - 5 + 4 3 2 1 - 1",),
    ],
)
def evaluate_prefix(text: str, *, plus: int, few: int) -> list[int]:
    """The words of `text`, separated by blanks, form a row of expressions. An expression is a
    whole number, or + and {plus} expressions (their sum), or < and {few} expression(s) (the
    smallest), or - and 2 expressions (the first minus the second). Return the values of the
    row's expressions, in order, without a last one that is incomplete.
    """
    open_parts: list[list[str | int]] = [[]]
    for word in text.split():
        if not word.isdigit():
            open_parts.append([word])
            continue
        value = int(word)
        while True:
            part = open_parts[-1]
            part.append(value)
            wanted = {"+": plus, "<": few, "-": 2}.get(str(part[0]))
            numbers = [item for item in part if isinstance(item, int)]
            if wanted is None or len(numbers) < wanted:
                break
            open_parts.pop()
            if part[0] == "+":
                value = sum(numbers)
            else:
                value = min(numbers) if part[0] == "<" else numbers[0] - numbers[1]
    return [item for item in open_parts[0] if isinstance(item, int)]


def _program(draw: Draw) -> Args:
    """Return a program that has numbers first and more often, so that operators find operands."""
    words = [
        str(draw.integer(0, 120))
        if i < 2 or draw.integer(0, 9) < 4
        else draw.word("+-*ddx", length=1)
        for i in range(draw.size)
    ]
    if draw.integer(0, 5) == 0:
        draw.rng.shuffle(words)
    return (" ".join(words),)


@family(
    "parsing",
    modulus=(7, 10, 97),
    lacking=("is skipped", "ends the program", "empties the stack"),
    inputs=_program,
    edges=lambda draw: [
        ("",),
        ("d",),
        ("5 + 3",),
        ("3 8 -",),
        ("2 9 x - d *",),
        ("4 d * x 3 6 6 * 1 x",),
    ],
)
def run_stack(text: str, *, modulus: int, lacking: str) -> list[int]:
    """The words of `text`, separated by blanks, act on a stack, empty at first. A whole number is
    put on top. +, - and * replace the top number b and a below it by a+b, a-b or a*b, of which
    the remainder (0 or more) by {modulus} is taken. d puts a copy of the top number on top; x
    swaps the top two. A word that lacks numbers {lacking}. Return the stack, top last.
    """
    stack: list[int] = []
    for word in text.split():
        if word.isdigit():
            stack.append(int(word))
        elif len(stack) < (1 if word == "d" else 2):
            if lacking == "ends the program":
                break
            if lacking == "empties the stack":
                stack.clear()
        elif word == "d":
            stack.append(stack[-1])
        else:
            b, a = stack.pop(), stack.pop()
            if word == "x":
                stack += [b, a]
            else:
                stack.append((a + b if word == "+" else a - b if word == "-" else a * b) % modulus)
    return stack


def _assignments(draw: Draw) -> Args:
    """Return about one statement for every four of `size`."""

    def operand() -> str:
        return draw.word("abc", length=1) if draw.integer(0, 1) else str(draw.integer(0, 40))

    statements: list[str] = []
    for _ in range((draw.size + 3) // 4):
        text = draw.word("abc", length=1) + "=" + operand()
        for _ in range(draw.integer(0, 4)):
            text += draw.word("+-*", length=1) + operand()
        statements.append(text)
    return (";".join(statements),)


@family(
    "parsing",
    modulus=(10, 100, 97),
    start=(1, 2, 3),
    inputs=_assignments,
    edges=lambda draw: [
        ("",),
        ("a=b",),
        ("b=b+1*5-2",),
        ("c=2-c-c*3",),
        ("a=3;b=a*a;a=a+b-20;c=a*b*a",),
        ("a=0-7;b=b+a*2;a=100;b=b-97",),
    ],
)
def run_assignments(text: str, *, modulus: int, start: int) -> list[int]:
    """Variables a, b and c are {start} at first. `text` has statements, maybe none, separated by
    ";". Each is a variable, "=", and variables or whole numbers with +, - or * between them. What
    is after "=" is computed from left to right, without precedence; its remainder (0 or more) by
    {modulus} becomes the variable's value. Return the final a, b, c.
    """
    import re

    values = dict.fromkeys("abc", start)
    for statement in text.split(";") if text else []:
        name, formula = statement.split("=")
        result = 0
        for op, operand in re.findall(r"([+*-]?)(\w+)", formula):
            value = values[operand] if operand in values else int(operand)
            if op == "*":
                result *= value
            else:
                result += -value if op == "-" else value
        values[name] = result % modulus
    return list(values.values())


FAMILIES: tuple[Family, ...] = (
    evaluate_expression,
    evaluate_prefix,
    run_stack,
    run_assignments,
)
