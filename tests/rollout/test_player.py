"""What is made only to be looked at is closed again."""

import asyncio

import pytest

from agentgym_rl import Env, Step
from agentgym_rl.config import load_config
from agentgym_rl.rollout.player import check_parts, services, specimen


class Counted(Env):
    """Holds something from its making on."""

    held: set[int] = set()  # noqa: RUF012

    def __init__(self):
        self.held.add(id(self))

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "hi"}], {}

    async def step(self, action):
        return Step([], 1.0, True, False, {})

    async def close(self):
        self.held.discard(id(self))


class ClosesNever(Counted):
    async def close(self):
        raise RuntimeError("stuck")


async def served(config) -> None:
    async with services(config):
        assert not Counted.held


@pytest.mark.parametrize("look", [check_parts, specimen, served], ids=["check", "env", "services"])
def test_an_environment_that_is_only_looked_at_is_closed(look):
    Counted.held.clear()
    asyncio.run(look(load_config(None, {"env.id": f"{__name__}:Counted"})))
    assert not Counted.held


def test_a_close_that_fails_is_a_warning(caplog):
    env = asyncio.run(specimen(load_config(None, {"env.id": f"{__name__}:ClosesNever"})))
    assert isinstance(env.unwrapped, ClosesNever)
    assert "stuck" in caplog.text
