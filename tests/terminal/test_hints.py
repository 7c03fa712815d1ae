"""Hints for what users of other programs type; every flag and key that they name is there."""

import re

import pytest
from arl_terminal import hints

from agentgym_rl.cli.config_keys import key_help
from agentgym_rl.cli.parse import make_parser, parse
from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases


@cases(
    "line, said",
    [
        ("train --lr 1e-3", "did you mean --trainer.learning_rate?"),
        ("train --learning-rate=1e-3", "did you mean --trainer.learning_rate?"),
        ("train --batch_size=8", "a batch has --rollout.groups_per_batch tasks"),
        ("train --num_train_epochs=3", "a run has --steps batches; --trainer.epochs is"),
        ("train --output_dir=x", "did you mean --run?"),
        ("train --env tools --level 2", "did you mean --env.options.level, an option of tools?"),
        ("train --env math --level 2", "did you mean --env.options.level, an option of math?"),
        ("train --level 2", "did you mean --logging.level?"),
        ("train --env no-such --level 2", "did you mean --logging.level?"),
        ("eval --num_examples 3", "did you mean -n?"),
        ("eval --rollouts-per-example=3", "did you mean -r?"),
        ("eval math -n 3", "unknown argument 'math'; did you mean --env math?"),
        ("train mine.toml", "unknown argument 'mine.toml'; did you mean --config mine.toml?"),
        ("train nonsense", "unknown argument 'nonsense'; `arl train --help`"),
        ("list math", "unknown argument 'math'; `arl list --help`"),
        ("train --verbose", "did you mean -v?"),
        ("train --no_such_thing", "unknown argument '--no_such_thing'; `arl train --help`"),
        ("train --lora=true", "lora is a section: give one of its keys, --lora.rank, "),
        ("train --gateway=1", "give one of its keys, --gateway.host, "),
        ("train --kl=0.1", "did you mean --algo.kl.coef?"),
        ("list --lr 1", "unknown argument '--lr'; `arl list --help`"),
    ],
)
def test_a_name_of_another_program_is_explained(line, said):
    with pytest.raises(ConfigError) as caught:
        parse(line.split())
    assert said in str(caught.value)


def test_every_flag_and_key_that_a_hint_names_is_there():
    flags = set(make_parser(["train"])[1]["train"]._option_string_actions)
    flags |= set(make_parser(["eval"])[1]["eval"]._option_string_actions)
    texts = [*hints._OF_OTHERS.values(), *hints._OF_EVAL.values(), *hints._WITH_REASON.values()]
    for name in re.findall(r"--?[a-z][\w.]*", " ".join(texts)):
        assert key_help(name.strip("-")) if "." in name else name in flags, name


@cases("name, said", [("ppo", "ppo-critic is PPO with a critic; grpo"), ("sft", "--init sft")])
def test_a_recipe_is_named_by_its_meaning(name, said):
    with pytest.raises(ConfigError, match=f"no preset '{name}'; {said}.*There are areal, "):
        load_config(None, {"preset": name})


@cases(
    "kind, id, said",
    [
        ("env", "FrozenLake-v1", "did you mean gymnasium:FrozenLake-v1"),
        ("env", "shop_db.ShopDB", "did you mean shop_db:ShopDB?"),
        ("env", "shop_db.py", "shop_db.py is a module: name the class in it, as in shop_db:ShopDB"),
        ("env", "./shop_db.py", "as in shop_db:ShopDB, shop_db:Other"),
        ("env", "shop_db", "as in shop_db:ShopDB"),
        ("agent", "own/ag.py", "as in own.ag:NAME"),
        ("agent", "FrozenLake-v1", ""),
        ("env", "no_such.Class", ""),
        ("env", "mathh", ""),
    ],
)
def test_an_unknown_id_that_is_a_file_or_of_gymnasium_is_explained(
    kind, id, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_db.py").write_text("class ShopDB:\n    pass\n\nclass Other:\n    pass\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/ag.py").write_text("this is no Python")
    found = hints.hint(kind, id, {})
    assert said in found if said else found == ""


def test_a_section_that_gets_a_number_is_answered_with_its_keys():
    with pytest.raises(ConfigError, match=r"got 0\.1\); did you mean algo\.kl\.coef\?"):
        load_config({}, {"algo.kl": 0.1})
    with pytest.raises(ConfigError, match=r"got 1\); allowed: of, unbiased, eps"):
        load_config({}, {"algo.std": 1})
