"""Values that are computed, and those that are open, as they depend on what is returned."""

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
    """A value that depends on what a call of the function under test returns."""

    node: ast.expr
    """How it is computed from `answer`."""
    args: Sequence[Any]
    """The arguments of that call."""
    wanted: tuple[ast.expr, Any, float, float | None] | None = None
    """Where it says that something is equal to a value: both, and how far off it may be, relative
    and absolute (None: by rounding)."""
    difference: tuple[ast.expr, Any] | None = None
    """Where it is something less a value, or the reverse: both."""
    distance: tuple[ast.expr, Any] | None = None
    """Where it is the size of such a difference: both."""
    helpers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Functions that it takes, by name: their source."""


@dataclass(frozen=True)
class Every:
    """Open truths that all have to hold."""

    truths: Sequence[Any]


@dataclass(frozen=True)
class Approximate:
    """What `pytest.approx` gives."""

    value: Any
    relative: float
    absolute: float


def approximate(value: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> Approximate:
    """As `pytest.approx`, where `abs` alone means that nothing relative is allowed."""
    relative = (1e-6 if abs is None else 0.0) if rel is None else rel
    return Approximate(value, relative, 1e-12 if abs is None else abs)


@dataclass(frozen=True)
class Helper:
    """A function of the row's own."""

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
    """Some eighty characters of the source of `node`, for an error message."""
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError, AttributeError):  # too deep, or a number too long to write
        text = type(node).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
