"""Published recipes by name: they load, they say what they are, and what is on top of them wins."""

from __future__ import annotations

import tomllib

import pytest

from agentgym_rl.cli.parse import parse
from agentgym_rl.cli.training import training_configuration
from agentgym_rl.config import LOSSES, Config, dump_toml, load_config, preset_names
from agentgym_rl.config.file import PRESETS
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases

NAMES = [
    *("areal", "areal-paper", "cispo", "clip-cov", "dapo", "dr-grpo", "gmpo", "gpg", "grpo"),
    *("gspo", "kl-cov", "m2po", "nemo-rl", "opo", "ppo-critic", "prorlv2", "reinforce++"),
    *("reinforce++-baseline", "rloo", "sapo", "trl", "vapo", "verl", "vespo"),
]


def test_these_are_all():
    assert preset_names() == sorted(NAMES)


@cases("name", NAMES)
def test_a_preset_is_what_its_file_says_and_no_more(name):
    config = load_config(None, {"preset": name, "steps": 99})
    said = tomllib.loads((PRESETS / f"{name}.toml").read_text())
    found, default = config.model_dump(), Config().model_dump()
    differing = different(found, default)
    assert differing <= {*leaves(said), "preset", "steps"}
    assert all(value_at(found, key) == value for key, value in leaves(said).items())
    assert "https://arxiv.org/abs/" in (PRESETS / f"{name}.toml").read_text()


@cases("name", NAMES)
def test_a_resolved_file_is_the_same_run(name, tmp_path):
    config = load_config(None, {"preset": name, "steps": 99})
    file = tmp_path / "config.toml"
    file.write_text(dump_toml(config))
    assert load_config(file) == config


def test_a_preset_is_a_flag():
    args = parse(["train", "--preset", "dr-grpo", "--algo.clip_low=0.1"])
    algo = training_configuration(args).algo
    assert (algo.aggregation, algo.scale, algo.clip_low) == ("constant", "none", 0.1)


def test_no_two_are_the_same():
    presets = [
        load_config(None, {"preset": name, "steps": 99}).model_copy(update={"preset": ""})
        for name in NAMES
    ]
    assert all(a != b for i, a in enumerate(presets) for b in presets[:i])


def test_a_file_and_flags_are_on_top(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('preset = "areal-paper"\n[algo.reward]\nscale = 2.0\n')
    config = load_config(file, {"algo.clip_high": "0.3"})
    assert (config.algo.reward.scale, config.algo.reward.bias) == (2, -0.5)
    assert (config.algo.clip_high, config.algo.baseline) == (0.3, "batch_mean")
    assert load_config(file, {"preset": "dapo"}).rollout.should_accept == "mixed_rewards"


def test_a_section_of_another_type_replaces_the_presets(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        'preset = "areal-paper"\n[algo.behavior_correction]\ntype = "clamp"\ncap = 2.0\n'
    )
    assert load_config(file).algo.behavior_correction.type == "clamp"


OFF = [
    *({"algo.loss": name} for name in (*LOSSES, "my:loss")),
    *({"algo.behavior_correction.type": name} for name in ("mask", "clamp", "none")),
    {"algo.naive": "true"},
    {"algo.baseline": "mean", "algo.scale": "none"},
    {"algo.kl.coef": "0"},
    {"algo.reward.overlong_penalty": "0"},
    {"algo.covariance.rule": "none"},
    {"algo.whiten.over": "none"},
]


@cases("name", NAMES)
@pytest.mark.slow
def test_what_a_preset_says_in_vain_beside_a_users_choice_is_left_out(name):
    preset = {"preset": name, "steps": 99}
    usual = load_config(None, preset)
    for choice in OFF:
        if "algo.behavior_correction.type" in choice and usual.algo.naive:
            continue  # in vain, and chosen
        found = load_config(None, preset | choice)
        assert found.algo.loss == choice.get("algo.loss", usual.algo.loss)
        assert load_config(found.model_dump(exclude_none=True)) == found


def test_what_a_preset_says_is_dropped_for_a_users_choice_alone(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[algo]\nloss = "reinforce"\n')
    assert load_config(file, {"preset": "verl"}).algo.dual_clip is None
    file.write_text('preset = "verl"\n[algo]\ndual_clip = 4\n')
    with pytest.raises(ConfigError, match=r"dual_clip 4\.0 does nothing unless loss is"):
        load_config(file, {"algo.loss": "reinforce"})
    kept = load_config(None, {"preset": "verl", "algo.loss": "gspo"}).algo
    assert (kept.dual_clip, kept.behavior_clip) == (3.0, 0.2)


def test_an_unknown_preset_names_the_near_one():
    with pytest.raises(ConfigError, match="no preset 'dappo'; did you mean dapo"):
        load_config(None, {"preset": "dappo"})
    with pytest.raises(ConfigError, match="allowed: areal, areal-paper"):
        load_config(None, {"preset": "xyz"})


def leaves(table: dict, prefix: str = "") -> dict:
    found = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        found |= leaves(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def value_at(table: dict, key: str):
    for part in key.split("."):
        table = table[part]
    return table


def different(found: dict, default: dict) -> set[str]:
    ours, theirs = leaves(found), leaves(default)
    return {key for key in ours if ours[key] != theirs.get(key)}
