"""Configuration files in YAML: the same tables as in TOML, without the surprises of YAML 1.1."""

import pytest
from arl_terminal.yaml_files import parse

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases

FILE = """
seed: 3
env: &math {id: math, options: {level: 2}}
rollout:
  group_size: 4
  max_retries: # a key without a value is left out
trainer: {learning_rate: 1e-4}
"""


@cases("ending", ["yaml", "yml"])
def test_a_yaml_file_is_the_same_as_a_toml_file(tmp_path, ending):
    (tmp_path / f"a.{ending}").write_text(FILE)
    config = load_config(tmp_path / f"a.{ending}", {"rollout.group_size": "2"})
    assert (config.seed, config.rollout.group_size, config.trainer.learning_rate) == (3, 2, 1e-4)
    assert config.env.options == {"level": 2}


@cases(
    "text, value",
    [
        *[("on", "on"), ("no", "no"), ("true", True), ("2020-01-01", "2020-01-01"), ("010", 10)],
        *[("1e-4", 1e-4), (".5", 0.5), ("-7", -7), ("0x10", 16), ("'3'", "3"), ("1_000", "1_000")],
    ],
)
def test_values_are_what_they_look_like(text, value):
    found = parse(f"key: {text}")["key"]
    assert (type(found), found) == (type(value), value)


def test_a_table_may_be_made_of_another():
    assert parse("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}")["b"] == {"x": 1, "y": 3}


@cases(
    "text, why",
    [
        ("a: 1\na: 2", "line 1: the table has 'a' twice"),
        ("- 1", "expected keys with values, got list"),
        ("1: 2", "the key 1 is no text"),
        ("a: [", "it is not YAML: .* line 1, column 5"),
        ("a: !!python/name:os.system x", "could not determine a constructor"),
        ("[" * 50_000, "it is not YAML"),
    ],
)
def test_other_texts_are_refused(tmp_path, text, why):
    (file := tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"cannot read configuration .*a.yaml: .*{why}"):
        load_config(file)
