"""Classes and functions as values of the configuration, and under names of their own."""

import asyncio

import pytest

from agentgym_rl import Agent, Env, Step, load_config, make, make_agent, register
from agentgym_rl.config import Config
from agentgym_rl.core import ConfigError
from agentgym_rl.gym import registry
from tests.kit.cases import cases

HERE = __name__


class Guess(Env):
    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "?"}], {}

    async def step(self, action):
        return Step([], 1.0, True, False, {})


class Patient(Agent):
    async def run(self, env, client, *, model, task):
        return None


def score(text, row):
    return 1.0


def local():
    class Inside(Guess):
        pass

    return Inside


def test_classes_and_functions_become_their_paths():
    own = {"env": {"id": Guess}, "agent": {"id": Patient}, "logging": {"trackers": [score]}}
    for config in (Config(**own), load_config(own), load_config(None, {"env.id": Guess})):
        assert config.env.id == f"{HERE}:Guess"
    assert load_config(own).agent.id == f"{HERE}:Patient"
    assert load_config(own).logging.trackers == (f"{HERE}:score",)
    assert load_config(None, {"algo.loss": score}).algo.loss == f"{HERE}:score"


def test_a_function_in_the_place_of_an_environment_rewards_replies():
    assert load_config({"env": {"id": score}}).env.id == f"reward:{HERE}:score"


@cases("value", [local(), lambda text, row: 1.0])
def test_what_other_processes_cannot_import_is_refused(value):
    with pytest.raises(ConfigError, match="at the top of a module"):
        load_config(None, {"env.id": value})


def test_a_class_is_registered_and_made(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    assert register("guess-v0", Guess).entry_point == f"{HERE}:Guess"
    for env in (make("guess"), make(Guess)):
        messages, _ = asyncio.run(env.reset(seed=1))
        assert messages[0]["content"] == "?"
    assert isinstance(make_agent(Patient), Patient)
    with pytest.raises(ConfigError, match="at the top of a module"):
        register("inside-v0", local())
