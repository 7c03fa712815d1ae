"""Errors: picklable, related as drawn, and attributed once."""

import asyncio
import pickle

import pytest

from agentgym_rl import errors
from agentgym_rl.errors import ArlError, EngineError, EnvError, SandboxError, boundary

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


async def fail(error: BaseException, kind: type[errors.EpisodeError] = SandboxError) -> None:
    async with boundary(kind, "exec pytest"):
        raise error


def test_a_foreign_error_is_attributed_once():
    with pytest.raises(SandboxError, match="exec pytest: KeyError: 'x'") as caught:
        asyncio.run(fail(KeyError("x")))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_ours_keeps_its_kind():
    with pytest.raises(EngineError, match=r"^mine$"):
        asyncio.run(fail(EngineError("mine"), EnvError))


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)])
def test_a_cancellation_passes_through(error):
    with pytest.raises(type(error)):
        asyncio.run(fail(error))


def test_a_boundary_without_an_error_is_silent():
    async def fine() -> int:
        async with boundary(EnvError, "nothing"):
            return 1

    assert asyncio.run(fine()) == 1
