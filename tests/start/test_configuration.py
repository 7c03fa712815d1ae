"""`arl config`: the configuration as a file with comments, complete and loadable."""

import json
import re
import tomllib

import pytest
from arl_start.configuration import as_toml, literal

from agentgym_rl.cli import main as cli
from agentgym_rl.config import Config, dump_toml, load_config
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases


@pytest.fixture
def arl(capsys):
    """Run a command; returns its exit code, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(list(argv))
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


def dotted(values: dict, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for key, value in values.items():
        place = f"{prefix}{key}"
        found |= dotted(value, f"{place}.") if isinstance(value, dict) and value else {place}
    return found


def test_the_file_is_the_defaults(tmp_path):
    (tmp_path / "all.toml").write_text(as_toml(Config()))
    assert load_config(tmp_path / "all.toml") == Config()


def test_the_file_has_every_key():
    text = re.sub(r"(?m)^# (\w+) =(.*)$", lambda it: f"{it[1]} ={it[2] or ' 0'}", as_toml(Config()))
    assert dotted(tomllib.loads(dump_toml(Config()))) <= dotted(tomllib.loads(text))


def test_values_of_a_file_are_kept(tmp_path):
    config = Config(
        env={"id": "mix", "options": {"a b": [1, 0.5], "c": {"d": True, "e": 'x"\n'}}},
        engine={"type": "vllm"},
        rollout={"max_staleness": 3},
    )
    (tmp_path / "all.toml").write_text(as_toml(config))
    assert load_config(tmp_path / "all.toml") == config


@cases(
    "value, text",
    [(True, "true"), (1e-5, "1e-05"), (float("inf"), "inf"), ((), "[]"), ({}, "{}"), ("é", '"é"')],
)
def test_literals(value, text):
    assert literal(value) == text
    parsed = tomllib.loads(f"x = {text}")["x"]
    assert parsed == (list(value) if isinstance(value, tuple) else value)


def test_a_section_and_a_key(arl):
    code, out, _ = arl("config", "algo.kl")
    assert (code, out.startswith("# A penalty"), "[algo.kl]" in out) == (0, False, True)
    _, out, _ = arl("config", "rollout.group_size", "--rollout.group_size=4")
    assert out.splitlines()[0] == "[rollout]"
    assert out.splitlines()[-1] == "group_size = 4"
    with pytest.raises(ConfigError, match=r"did you mean rollout\.group_size"):
        as_toml(Config(), "rollout.groupsize")
    with pytest.raises(ConfigError, match=r"rollout\.group_size is a value"):
        as_toml(Config(), "rollout.group_size.x")


def test_what_a_run_would_use(arl, tmp_path):
    (tmp_path / "my.toml").write_text("[trainer]\nlearning_rate = 1e-3\n")
    _, out, _ = arl("config", "--config", str(tmp_path / "my.toml"), "--steps", "7", "--json")
    values = json.loads(out)["config"]
    assert (values["steps"], values["trainer"]["learning_rate"]) == (7, 1e-3)
    _, out, _ = arl("config", "engine", "--seed", "1")
    assert "\nmax_num_seqs = " in out
    _, out, _ = arl("config", "engine")
    assert "\n# max_num_seqs = " in out
    assert "the types are: embedded, vllm" in " ".join(out.replace("#", "").split())


def test_a_wrong_key_is_refused(arl):
    code, _, err = arl("config", "--rollout.group_sise=3")
    assert (code, "did you mean rollout.group_size" in err) == (2, True)
