"""A test of many cheap cases as one: a loop over them that goes on past those that fail."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tests.exhaustive import CASE

_NAME_LENGTH = 100

_Row = tuple[str, dict[str, Any]]
"""The name of a case, and its arguments."""


def cases(
    names: str, values: Iterable[Any], ids: Iterable[Any] | Callable[[Any], Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for each of `values`, which have the form of `pytest.mark.parametrize`.

    All of them are one test. A case that fails is a failed subtest, with its name and its reason,
    and the others run nevertheless. Several `cases` of a test are tried in all combinations.
    A case begins with an empty `tmp_path`, `caplog` and `capsys`, and its `monkeypatch` is undone
    at its end. All other fixtures are shared: a test that changes one stays with `parametrize`, as
    does one whose cases have marks or take long.
    `ARL_CASE=TEXT` runs only those that have the text in their name: see `chosen`.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        plain, inner = getattr(test, "plain", test), getattr(test, "rows", [("", {})])
        rows = [
            (f"{of_inner}-{name}" if of_inner else name, {**more, **arguments})
            for (name, arguments), (of_inner, more) in itertools.product(outer, inner)
        ]
        return _looped(plain, rows)

    outer = _rows([name.strip() for name in names.split(",")], list(values), ids)
    return decorate


def chosen(names: Iterable[str]) -> list[str]:
    """Return the names that have the text of `ARL_CASE`; skip the test where none of them has."""
    found = [name for name in names if CASE in name]
    if CASE and not found:
        pytest.skip(f"no case has {CASE!r} in its name (ARL_CASE)")
    return found


def _rows(names: Sequence[str], values: Sequence[Any], ids: Any) -> list[_Row]:
    told, given = (ids, None) if callable(ids) else (None, ids)
    rows = []
    for name, value in zip(given or [None] * len(values), values, strict=True):
        if hasattr(value, "marks"):  # a `pytest.param`
            assert not value.marks, f"{value} has marks: say it with pytest.mark.parametrize"
            name, value = value.id or name, value.values
        elif len(names) == 1:
            value = (value,)
        arguments = dict(zip(names, value, strict=True))
        rows.append((_named(arguments, told) if name is None else str(name), arguments))
    assert rows, f"no case of {names}"
    return rows


def _named(arguments: dict[str, Any], told: Callable[[Any], Any] | None) -> str:
    said = []
    for name, value in arguments.items():
        own = told(value) if told else None
        plain = f"{name}={getattr(value, '__name__', None) or repr(value)}"
        said.append(plain if own is None else str(own))
    name = ", ".join(said)
    return name if len(name) <= _NAME_LENGTH else f"{name[:_NAME_LENGTH]}..."


def _looped(test: Callable[..., None], rows: Sequence[_Row]) -> Callable[..., None]:
    taken = inspect.signature(test).parameters
    unknown = rows[0][1].keys() - taken.keys()
    assert not unknown, f"{test.__name__} takes no {sorted(unknown)}"

    @functools.wraps(test)
    def run(subtests: pytest.Subtests, **fixtures: Any) -> None:
        wanted = chosen(name for name, _ in rows)
        for number, (name, arguments) in enumerate(rows):
            if name not in wanted:
                continue
            with pytest.MonkeyPatch.context() as patch:
                own: dict[str, Any] = {}
                if "monkeypatch" in taken:
                    own["monkeypatch"] = patch
                if "tmp_path" in taken:
                    own["tmp_path"] = fixtures["tmp_path"] / str(number)
                    own["tmp_path"].mkdir()
                if "caplog" in taken:
                    fixtures["caplog"].clear()
                if "capsys" in taken:
                    fixtures["capsys"].readouterr()
                try:
                    test(**(fixtures | own | arguments))
                except BaseException as error:
                    if "from pytest-timeout" in str(error):  # the others would have no limit
                        error.add_note(f"in the case {name}")
                        raise
                    with subtests.test(name):
                        raise

    shared = [name for name in taken if name not in rows[0][1] and name != "monkeypatch"]
    wanted = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ["subtests", *shared]
    ]
    vars(run).update(plain=test, rows=rows, __signature__=inspect.Signature(wanted))
    return run
