"""The text form of a task: the input and output of values by a program without a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Form:
    """The text form of one type."""

    words: str
    """The words in the statement for a value of the type."""
    read: str
    """The Python code that reads a value."""
    write: str
    """The Python code that prints `answer`."""


_FORMS: dict[Any, Form] = {
    int: Form("a number on a line", "int(input())", "print(answer)"),
    bool: Form(
        "true or false on a line", 'input() == "true"', 'print("true" if answer else "false")'
    ),
    str: Form("a line of text", "input()", "print(answer)"),
    list[int]: Form("numbers on one line", "[int(x) for x in input().split()]", "print(*answer)"),
    list[str]: Form(
        "how many, then each on a line",
        "[input() for _ in range(int(input()))]",
        'print(len(answer), *answer, sep="\\n")',
    ),
    list[list[int]]: Form(
        "how many rows, then each row on a line",
        "[[int(x) for x in input().split()] for _ in range(int(input()))]",
        'print(len(answer), *(" ".join(map(str, row)) for row in answer), sep="\\n")',
    ),
}


def input_text(args: tuple[Any, ...], types: Mapping[str, Any]) -> str:
    """Return the standard input of the program: one argument after the other."""
    return "".join(map(text_of, args, types.values()))


def text_of(value: Any, type_: Any) -> str:
    """Return `value` of type `type_` as a program reads or prints it, with line ends."""
    if type_ is bool:
        return "true\n" if value else "false\n"
    if type_ == list[int]:
        return f"{_spaced(value)}\n"
    if type_ == list[str]:
        return "\n".join([str(len(value)), *value, ""])
    if type_ == list[list[int]]:
        return "\n".join([str(len(value)), *map(_spaced, value), ""])
    return f"{value}\n"


def describe(types: Mapping[str, Any], answer: Any) -> str:
    """Return the part of a statement about input and output."""
    reads = "; ".join(f"{name}: {_FORMS[type_].words}" for name, type_ in types.items())
    return f"Input: {reads}.\nOutput: {_FORMS[answer].words}."


def program(function: str, name: str, types: Mapping[str, Any], answer: Any) -> str:
    """Return a complete program around the source of a function called `name`."""
    reads = [f"{argument} = {_FORMS[type_].read}" for argument, type_ in types.items()]
    call = f"answer = {name}({', '.join(types)})"
    return "\n".join([function, *reads, call, _FORMS[answer].write, ""])


def _spaced(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))
