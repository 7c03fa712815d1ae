"""Keys that other packages add to sections of the configuration."""

import json
import os
import subprocess
import sys

import pytest

from agentgym_rl.core import missing_key
from tests.kit.extension import install

KEYS = '''
from pydantic import Field, model_validator

from agentgym_rl.core.section import Anytime, Needs, Section, one_of


class Tempo(Section):
    """How fast a run plays."""

    after = "temperature"
    needs = (Needs("beat", "tempo", "'fast'", one_of("fast")),)

    tempo: Anytime[str] = "slow"
    """The tempo of a run."""
    beat: int = Field(default=1, ge=1)
    """The beats of a fast one."""

    @model_validator(mode="after")
    def _tempo_fits(self):
        if self.tempo == "fast" and self.group_size > 4:
            raise ValueError("tempo 'fast' needs group_size 4 or less")
        return self

    def conflicts(self, config):
        if self.tempo == "fast" and config.steps > 10:
            yield f"rollout.tempo 'fast' with steps {config.steps}: use 10"


class GreetingConfig(Section):
    """The greeting of a run."""

    words: str = "hello"
    """Its words."""


class Greeting(Section):
    after = "model"

    greeting: GreetingConfig = GreetingConfig()


class Taken(Section):
    max_staleness: int = 3


class Checked(Section):
    hours: int = 3

    @model_validator(mode="after")
    def _consistent(self):
        return self


KEYLESS = 7
'''
POINTS = {
    "rollout.tempo": "theirs_keys:Tempo",
    "rollout.beat": "theirs_keys:Tempo",
    "greeting": "theirs_keys:Greeting",
    "rollout.max_staleness": "theirs_keys:Taken",
    "rollout.hours": "theirs_keys:Checked",
    "rollout.broken": "theirs_absent:Broken",
    "rollout.keyless": "theirs_keys:KEYLESS",
}
LOAD = """
import json, sys
from agentgym_rl.config import Config, load_config, dump_toml, free_keys
from agentgym_rl.core.errors import ConfigError
import theirs_keys
first, *others = json.loads(sys.argv[1])
refused = []
for overrides in others:
    try:
        load_config(None, overrides)
    except ConfigError as error:
        refused.append(str(error))
config = load_config(None, first)
keys = list(type(config.rollout).model_fields)
print(json.dumps({
    "of": [config.of(theirs_keys.Tempo).tempo, config.of(theirs_keys.GreetingConfig).words],
    "behind": keys[keys.index("temperature") + 1 :][:2],
    "sections": list(type(config).model_fields),
    "toml": dump_toml(config),
    "free": "rollout.tempo" in list(free_keys(Config, "resume")),
    "staleness": config.rollout.max_staleness,
    "hours": "hours" in keys,
    "refused": refused,
}))
"""
REFUSED = [
    ({"rollout.tempo": "fast", "steps": 11, "rollout.group_size": 4}, "'fast' with steps 11"),
    ({"rollout.tempo": "fast"}, "needs group_size 4 or less"),
    ({"rollout.beat": 2}, "beat 2 does nothing unless tempo is 'fast'"),
    ({"rollout.beet": 2}, "did you mean rollout.beat?"),
    ({"greeting.wods": 2}, "did you mean greeting.words?"),
]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return install(
        tmp_path_factory.mktemp("keys") / "theirs", {"theirs_keys": KEYS}, {"keys": POINTS}
    )


def python(theirs, *argv):
    """Run Python with the package: a configuration is made of what is installed when it begins."""
    env = {**os.environ, "PYTHONPATH": str(theirs)}
    command = [sys.executable, *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def loaded(theirs):
    good = {"rollout.tempo": "quick", "greeting.words": "hi"}
    done = python(theirs, "-c", LOAD, json.dumps([good, *(keys for keys, _ in REFUSED)]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_package_adds_keys_and_sections_in_their_places(loaded):
    found, _ = loaded
    assert found["of"] == ["quick", "hi"]
    assert found["behind"] == ["tempo", "beat"]
    at = found["sections"].index("model")
    assert found["sections"][at : at + 3] == ["model", "init", "greeting"]  # ours first
    assert 'tempo = "quick"' in found["toml"]
    assert found["free"]


def test_a_class_that_does_not_fit_is_left_out_with_a_warning(loaded):
    found, warnings = loaded
    assert (found["staleness"], found["hours"]) == (2, False)
    for said in ("has max_staleness, as agentgym_rl.config.rollout does", "_consistent"):
        assert said in warnings
    assert "'rollout.broken' (theirs_absent:Broken) cannot be imported" in warnings
    assert "expected a subclass of agentgym_rl.config.Section" in warnings


def test_its_rules_are_those_of_the_section(loaded):
    found, _ = loaded
    for (_, said), refusal in zip(REFUSED, found["refused"], strict=True):
        assert said in refusal


def test_its_keys_are_in_help(theirs):
    done = python(theirs, "-m", "agentgym_rl", "train", "--help", "rollout.tempo")
    assert "The tempo of a run." in done.stdout, done.stderr


def test_a_key_of_another_package_that_is_not_there_is_no_key():
    assert missing_key("rollout.tempo") == ""
