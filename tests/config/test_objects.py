"""Classes and functions as values of the configuration, and under names of their own."""

import asyncio

import pytest

from agentgym_rl import Agent, Env, Step, load_config, make, make_agent, register, wrappers
from agentgym_rl.config import Config, RolloutConfig
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


class Wrapped(wrappers.Wrapper):
    pass


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


def test_an_object_stands_for_the_section_that_it_is_the_id_of():
    own = {"env": Guess, "agent": Patient, "engine": "scripted", "model": "bundled/tools"}
    for config in (Config(**own), load_config(own), load_config(None, own)):
        found = (config.env.id, config.agent.id, config.engine.type, config.model.path)
        assert found == (f"{HERE}:Guess", f"{HERE}:Patient", "scripted", "bundled/tools")
    assert Config(env=score).env.id == f"reward:{HERE}:score"
    kept = load_config({"env": {"id": "math", "options": {"level": 2}}}, {"env": "tools"})
    assert (kept.env.id, kept.env.options) == ("tools", {"level": 2})


def test_objects_stand_at_every_depth_of_options():
    options = {"wrappers": [Wrapped, {"entry_point": Wrapped}], "max_turns": 2}
    config = Config(env={"id": Guess, "options": options})
    named = f"{HERE}:Wrapped"
    assert config.env.options["wrappers"] == [named, {"entry_point": named}]
    assert make(Guess, wrappers=[Wrapped]).spec.wrappers[0].entry_point == named


OBJECTS = {
    "rollout.group_reward": score,
    "rollout.should_accept": score,
    "rollout.curriculum": Guess,
    "algo.loss": score,
    "algo.advantage": score,
    "trainer.optimizer": score,
    "sandbox.id": Guess,
}


@cases("key, value", OBJECTS.items())
def test_every_key_of_an_object_takes_it(key, value):
    section, name = key.split(".")
    found = getattr(getattr(load_config(None, {key: value}), section), name)
    assert found == f"{HERE}:{value.__name__}"
    assert getattr(getattr(Config(**{section: {name: value}}), section), name) == found


WRONG = {
    "near": (lambda: Config(stepz=2), "Config: unknown key stepz; did you mean steps?"),
    "nested": (lambda: Config(rollout={"group_sise": 1}), "did you mean rollout.group_size?"),
    "elsewhere": (lambda: Config(algo={"preset": "x"}), "key algo.preset; did you mean preset?"),
    "their name": (lambda: Config(algo={"lr": 1}), "algo.lr; did you mean trainer.learning_rate?"),
    "dotted": (lambda: Config(**{"env.id": "x"}), "here it is env={'id': …}"),
    "type": (lambda: Config(steps="x"), "steps: expected a whole number (got 'x')"),
    "range": (lambda: Config(steps=0), "steps: too small; allowed: at least 1 (got 0)"),
    "choice": (lambda: Config(logging={"level": "loud"}), "logging.level: unknown; allowed: "),
    "list": (lambda: Config(trainer={"betas": "x"}), "trainer.betas: expected a list"),
    "section": (lambda: Config(rollout=3), "rollout: expected a section"),
    "alone": (lambda: RolloutConfig(group_sise=1), "RolloutConfig: unknown key group_sise; did"),
    "rule": (lambda: Config(algo={"dro_beta": 2.0}), "dro_beta 2.0 does nothing unless"),
    "a lambda": (lambda: Config(rollout={"group_reward": lambda: 1}), "rollout.group_reward: <"),
    "of make": (lambda: make("math", max_turns=0), "max_turns: too small; allowed: at least 1"),
    "of register": (lambda: register("x-v0", Guess, max_turns=0), "max_turns: too small"),
}


@cases("make_it, said", WRONG.values(), ids=list(WRONG))
def test_a_wrong_key_is_a_configuration_error_in_our_words(make_it, said):
    with pytest.raises(ConfigError) as raised:
        make_it()
    message = str(raised.value)
    assert said in message
    assert "pydantic" not in message
    assert "Input should" not in message


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


class Frame:
    """A table like that of pandas: its truth value cannot be asked for."""

    iloc = None

    def __bool__(self):
        raise ValueError("The truth value of a DataFrame is ambiguous")

    def __len__(self):
        return 1

    def __repr__(self):
        return "0  What is 1 + 1?  2"

    def to_json(self, path, **options):
        raise AssertionError


class Set(Frame):
    iloc = property()

    def __getattribute__(self, name):
        if name == "iloc":
            raise AttributeError(name)
        return super().__getattribute__(name)


@cases(
    "data, said",
    [
        (Frame(), 'got a Frame; .*orient="records", lines=True\\)'),
        (Set(), r'got a Set; .*rows\.to_json\("rows\.jsonl"\)'),
    ],
    ids=["frame", "set"],
)
def test_rows_in_memory_are_refused_with_the_line_that_saves_them(data, said):
    for options in ({"data": data}, {"rows": {"path": data}}):
        with pytest.raises(ConfigError, match=said) as refused:
            Config(env={"id": score, "options": options})
        assert "What is 1 + 1?" not in str(refused.value)


@cases("data", [Frame(), [{"question": "What is 1 + 1?"}]], ids=["frame", "list"])
def test_an_environment_refuses_rows_in_memory_in_the_same_way(data):
    with pytest.raises(ConfigError, match=r"path: got .*, the path of a file; .*save") as refused:
        asyncio.run(make(f"reward:{HERE}:score", data=data).reset(seed=1))
    assert "What is 1 + 1?" not in str(refused.value)


@cases("section", ["env", "agent"])
def test_an_instance_is_refused_with_the_class_to_pass(section):
    with pytest.raises(ConfigError, match="a class or function: Guess, not Guess"):
        Config(**{section: Guess()})
