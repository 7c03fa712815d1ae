"""Errors: picklable, and related as drawn."""

import logging
import pickle
import traceback

import pytest

from agentgym_rl.core import ArlError, ConfigError, errors, raise_cause, too_slow
from agentgym_rl.runtime import Repeated
from tests.kit.cases import cases

ALL = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, ArlError)]


@cases("kind", ALL)
def test_errors_travel_between_processes(kind):
    error = pickle.loads(pickle.dumps(kind("what, got, allowed")))
    assert (type(error), str(error)) == (kind, "what, got, allowed")


def test_the_tree_drawn_in_errors_py_is_the_real_one():
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in ALL)


@cases(
    "kind, bases",
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


def test_warnings_of_many_episodes_are_few(caplog):
    warnings = Repeated(logging.getLogger("agentgym_rl.some"))
    late = too_slow("the model's reply", "rollout.turn_timeout_s", 30)
    with caplog.at_level(logging.WARNING):
        for number in range(250):
            warnings.warn("episode g%d: %s", number, late, why=late)
    first, hundredth = caplog.messages
    assert first == (
        "episode g0: the model's reply took more than 30 s (rollout.turn_timeout_s): on a machine "
        "or with a model that is only slow, give it longer, such as --rollout.turn_timeout_s=120 "
        "(others like this are counted, not shown)"
    )
    assert hundredth.startswith("episode g99: ")
    assert hundredth.endswith(" (100 like this so far)")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for number in range(30):
            why = f"File 'a{number}.py', line {number}\nKeyError: 'key {number}'"
            warnings.warn("%s", why, why=why)
            warnings.warn("it is broken in way %s", "x" * number, why="broken" + "x" * number)
    shown = [line for line in caplog.messages if "KeyError" in line]
    assert (len(shown), len(caplog.messages)) == (1, 20)


def test_an_error_of_ours_is_raised_alone_since_its_message_is_complete():
    try:
        raise KeyError("theirs")
    except KeyError as theirs:
        before = theirs
    cause = ConfigError("ours")
    cause.__cause__ = before

    def run():
        try:
            raise BaseExceptionGroup("tasks", [BaseExceptionGroup("parts", [cause])])
        except BaseExceptionGroup as group:
            raise_cause(group)

    with pytest.raises(ConfigError, match="ours") as raised:
        run()
    text = "".join(traceback.format_exception(raised.value))
    assert "Exception Group" not in text
    assert "KeyError" not in text
