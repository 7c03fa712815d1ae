"""The public parts: each has an example in its docstring, and it runs."""

import doctest
import inspect

import pytest

import agentgym_rl
from tests.kit.cases import cases

QUICK = [
    "Agent",
    "Buffer",
    "Config",
    "Engine",
    "Env",
    "Recorder",
    "Step",
    "Task",
    "ToolEnv",
    "runs",
]
STARTED = ["Fleet", "Rollout", "Trainer", "evaluate", "train"]
"""The parts whose examples start an engine, or load a model for training."""


def check(name: str) -> None:
    """Run the example in the docstring of a public name."""
    part = agentgym_rl.__getattr__(name)  # `agentgym_rl.evaluate` may be the package of that name
    text = inspect.getdoc(part) or ""
    test = doctest.DocTestParser().get_doctest(text, {"__name__": __name__}, name, name, 0)
    assert test.examples, f"{name} has no example"
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test, out=said.append).failed == 0, "".join(said)


@cases("name", QUICK)
def test_the_example_of_a_part_runs(name):
    check(name)


@pytest.mark.slow
@cases("name", STARTED)
def test_the_example_of_a_part_that_starts_something_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(name)


def test_there_are_few_names_to_learn():
    assert len(agentgym_rl.__all__) <= 45
