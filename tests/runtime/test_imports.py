"""Sources that several threads parse at once."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import hidden_modules, import_object, parse_python
from tests.kit.cases import cases

SOURCE = "\n".join(f"def f{i}(a, b):\n    return a + b * {i}\n" for i in range(50))


@pytest.fixture
def busy_collector():
    """Collect garbage all the time, with a turn for other threads in each collection."""

    def turn(*_: object) -> None:
        sum(range(200))

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5, 2, 2)
    sys.setswitchinterval(1e-6)
    gc.callbacks.append(turn)
    yield
    gc.callbacks.remove(turn)
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


def deep(calls: int, found: list[int]) -> None:
    """Parse at another depth of the stack than other threads do."""
    if calls:
        deep(calls - 1, found)
    else:
        found += [len(parse_python(SOURCE).body) for _ in range(200)]


def test_threads_parse_at_once(busy_collector):
    found: list[int] = []
    threads = [threading.Thread(target=deep, args=(calls, found)) for calls in (0, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [50] * 400


def test_a_source_that_is_no_python_is_refused_as_by_ast():
    with pytest.raises(SyntaxError):
        parse_python("def")


def test_a_missing_function_is_answered_with_those_of_the_module(tmp_path, monkeypatch):
    (tmp_path / "own_scores.py").write_text("from math import sin\n\ndef score(a, b):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"has no attribute 'typo'.*; it has score$"):
        import_object("own_scores:typo")


@cases(
    "error, said",
    [
        (AttributeError("module 'calendar' has no attribute 'timegm'"), "rename calendar.py in"),
        (ImportError("cannot import name 'x' from 'calendar' (calendar.py)"), "rename calendar.py"),
        (ExceptionGroup("tasks", [ImportError("from 'calendar'")]), "(ImportError: from 'calen"),
        (ImportError("cannot import name 'x' from 'queue' (queue.py)"), ""),
        (ImportError("cannot import name 'x' from 'own' (own.py)"), ""),
        (ValueError("'calendar' has no such day"), ""),
    ],
)
def test_a_file_that_hides_a_module_of_python_is_named_for_its_own_errors(
    tmp_path, monkeypatch, error, said
):
    monkeypatch.chdir(tmp_path)
    for name in ("calendar", "own"):
        (tmp_path / f"{name}.py").touch()
    found = hidden_modules(error)
    assert said in found
    assert bool(found) == bool(said)
