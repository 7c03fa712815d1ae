"""The public parts: each has an example in its docstring, and it runs."""

import doctest
import inspect

import pytest

import agentgym_rl
from tests.kit.cases import cases

PARTS = ["Buffer", "Fleet", "Recorder", "Rollout", "Trainer", "runs"]
"""The parts that a loop is made of."""
SHORT = ["Config", "Engine", "Env", "Agent", "Task", "TaskSource", "Trajectory", "ToolEnv"]


def examples(name):
    """Return the examples in the docstring of a public name."""
    part = getattr(agentgym_rl, name)
    text = inspect.getdoc(part) or ""
    found = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, name, 0)
    return found


@pytest.mark.slow
@cases("name", PARTS)
def test_the_example_of_a_part_runs(name):
    test = examples(name)
    assert test.examples
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(test, out=said.append).failed == 0, "".join(said)
