"""Errors: picklable, and related as drawn."""

import pickle

import pytest

from agentgym_rl import errors
from agentgym_rl.errors import ArlError

ALL = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, ArlError)]


@pytest.mark.parametrize("kind", ALL)
def test_errors_travel_between_processes(kind):
    error = pickle.loads(pickle.dumps(kind("what, got, allowed")))
    assert (type(error), str(error)) == (kind, "what, got, allowed")


def test_the_tree_drawn_in_errors_py_is_the_real_one():
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in ALL)


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        ("ConfigError", (ValueError,)),
        ("AgentError", (errors.EpisodeError,)),
        ("SandboxError", (errors.InfraError,)),
        ("EngineError", (errors.InfraError, errors.EpisodeError)),
        ("ContextLengthError", (errors.EpisodeError, ValueError)),
        ("ProcessDied", (RuntimeError,)),
    ],
)
def test_relations(kind, bases):
    assert all(issubclass(getattr(errors, kind), base) for base in bases)
    assert not issubclass(errors.AgentError, errors.InfraError)
