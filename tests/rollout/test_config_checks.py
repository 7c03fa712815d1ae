"""What is made only to be looked at is closed again."""

import asyncio
import re

import pytest

from agentgym_rl import Env, Step, Task
from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.rollout import check_parts, check_policy, env_spec, specimen
from agentgym_rl.rollout.factory import services
from tests.kit.cases import cases


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


def spec_of(config):
    return env_spec(config.env, config.rollout)


async def made(config):
    return await specimen(spec_of(config))


async def served(config) -> None:
    async with services(spec_of(config), config.sandbox, config.verifier):
        assert not Counted.held


@pytest.mark.parametrize("look", [check_parts, made, served], ids=["check", "env", "services"])
def test_an_environment_that_is_only_looked_at_is_closed(look):
    Counted.held.clear()
    asyncio.run(look(load_config(None, {"env.id": f"{__name__}:Counted"})))
    assert not Counted.held


def test_a_close_that_fails_is_a_warning(caplog):
    env = asyncio.run(made(load_config(None, {"env.id": f"{__name__}:ClosesNever"})))
    assert isinstance(env.unwrapped, ClosesNever)
    assert "stuck" in caplog.text


def test_a_loss_of_ones_own_must_be_there():
    def check(**keys: str) -> None:
        config = load_config(None, {key.replace("__", "."): value for key, value in keys.items()})
        check_policy(config, config.own_engine)

    check()
    check(algo__loss=f"{__name__}:test_a_loss_of_ones_own_must_be_there")
    with pytest.raises(ConfigError, match=r"algo\.loss.*nowhere"):
        check(algo__loss="nowhere:loss")


class Odd(Counted):
    """Its only task is the one of this class."""

    task: object = None

    @classmethod
    def task_source(cls, split, *, seed):
        return [] if cls.task is None else [cls.task]


ODD_TASKS = {
    "has no eval tasks; --eval.num_tasks=0 evaluates on none": None,
    "must give Task objects, got 'two'": "two",
    "data must be JSON": Task("t", 0, data={"x": object()}),
    "seed -1 is not in": Task("t", -1),
    f"seed {2**63} is not in": Task("t", 2**63),
    "seed 'one' is not in": Task("t", "one"),  # type: ignore[arg-type]
}


@cases("said, task", ODD_TASKS.items())
def test_a_first_task_that_cannot_be_played_is_refused(monkeypatch, said, task):
    monkeypatch.setattr(Odd, "task", task)
    with pytest.raises(ConfigError, match=re.escape(said)):
        asyncio.run(check_parts(load_config(None, {"env.id": f"{__name__}:Odd"})))


@cases("seed", [0, 2**63 - 1])
def test_the_least_and_the_greatest_seed_are_allowed(monkeypatch, seed):
    monkeypatch.setattr(Odd, "task", Task("t", seed))
    asyncio.run(check_parts(load_config(None, {"env.id": f"{__name__}:Odd"})))
