"""The values that are computed, and the open ones, which depend on the returned value."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arl_envs.code.driver import encode

ANSWER = "answer"


@dataclass(frozen=True)
class Open:
    """A value that depends on the result of a call of the function under test."""

    node: ast.expr
    """The expression that computes the value from `answer`."""
    args: Sequence[Any]
    """The arguments of that call."""
    wanted: tuple[ast.expr, Any, float, float | None] | None = None
    """The sides of an equality: an expression, its right value, and the allowed distance, relative
    and absolute (None: by rounding)."""
    difference: tuple[ast.expr, Any] | None = None
    """The sides of a difference in either order: an expression and a value."""
    distance: tuple[ast.expr, Any] | None = None
    """The sides of the absolute value of such a difference."""
    helpers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The source of the functions that the expression uses, by name."""


@dataclass(frozen=True)
class Every:
    """A list of open truths that must all hold."""

    truths: Sequence[Any]


@dataclass(frozen=True)
class Approximate:
    """A value like that of `pytest.approx`."""

    value: Any
    relative: float
    absolute: float


def approximate(value: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> Approximate:
    """Return the result of `pytest.approx`, where `abs` alone excludes a relative tolerance."""
    relative = (1e-6 if abs is None else 0.0) if rel is None else rel
    return Approximate(value, relative, 1e-12 if abs is None else abs)


@dataclass(frozen=True)
class Helper:
    """A function that the row defines."""

    node: ast.FunctionDef | ast.Lambda
    scopes: list[dict[str, Any]]
    defaults: Sequence[Any] = ()


@dataclass(frozen=True)
class Class:
    """A class that the submission has to define."""

    name: str


class Entry:
    """The function under test."""


ENTRY = Entry()


class Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Broken(Exception):
    pass


class Continued(Exception):
    pass


class Module:
    def __init__(self, name: str) -> None:
        self.name = name


def is_items(value: Any) -> bool:
    return type(value) in (list, tuple)


def opens_of(value: Any) -> list[Open]:
    if isinstance(value, Open):
        return [value]
    if isinstance(value, Every):
        return [each for truth in value.truths for each in opens_of(truth)]
    return [each for part in value for each in opens_of(part)] if is_items(value) else []


def has_open(value: Any) -> bool:
    return bool(opens_of(value))


def key_of(value: Open) -> str:
    return json.dumps(encode(list(value.args)))


def show(node: Any) -> str:
    """Return up to eighty characters of the source of `node`, for an error message."""
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError, AttributeError):  # too deep, or a number too long to write
        text = type(node).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
