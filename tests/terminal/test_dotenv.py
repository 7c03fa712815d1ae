"""A `.env` file: the keys of services are set, named and never shown; nothing else is read."""

import os
from argparse import Namespace
from pathlib import Path

import pytest
from arl_terminal.dotenv import read_env

from agentgym_rl.core import ConfigError
from tests.kit.cases import cases

NAMES = ("HF_TOKEN", "OPENAI_API_KEY", "WANDB_PROJECT", "OPENAI_BASE_URL", "ARL_TOKEN", "PATH_X")


@pytest.fixture
def reads(tmp_path, monkeypatch, capsys):
    """Read a `.env` with a text for a command; return what is set and what is said."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def reads(text: str, **args: object) -> tuple[dict[str, str], str]:
        Path(".env").write_text(text)
        before = dict(os.environ)
        read_env(Namespace(**{"command": "train", **args}))
        new = {name: value for name, value in os.environ.items() if before.get(name) != value}
        for name in new:
            del os.environ[name]
        return new, capsys.readouterr().err

    return reads


@cases(
    "line, value",
    [
        ("HF_TOKEN=hf_x", "hf_x"),
        ("export HF_TOKEN = hf_x  # mine", "hf_x"),
        ("HF_TOKEN='h f#x'", "h f#x"),
        ('HF_TOKEN="h\\"f\\nx" # mine', 'h"f\nx'),
        ("HF_TOKEN=a#b", "a#b"),
        ("HF_TOKEN=two words", "two words"),
        ("HF_TOKEN=", ""),
    ],
)
def test_a_line_is_a_name_and_a_value(reads, line, value):
    assert reads(f"# a comment\n\n{line}\nnot a line\n") == (
        {"HF_TOKEN": value},
        "arl: .env sets HF_TOKEN\n",
    )


def test_only_keys_are_read_and_never_shown(reads):
    text = "OPENAI_API_KEY=sk-secret\nOPENAI_BASE_URL=http://elsewhere\nPATH_X=/x\nWANDB_PROJECT=p"
    new, said = reads(text)
    assert new == {"OPENAI_API_KEY": "sk-secret", "WANDB_PROJECT": "p"}
    assert said == "arl: .env sets OPENAI_API_KEY, WANDB_PROJECT\n"


def test_the_environment_has_precedence(reads, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "mine")
    assert reads("HF_TOKEN=theirs") == ({}, "")
    assert os.environ["HF_TOKEN"] == "mine"


def test_keys_of_the_configuration_belong_elsewhere(reads):
    new, said = reads("ARL_TOKEN=x\nARL_STEPS=3")
    assert new == {}
    assert "cannot set ARL_TOKEN, ARL_STEPS" in said
    assert "--config file" in said


@cases("args", [{"command": "list"}, {"command": "engine"}])
def test_other_commands_do_not_read_it(reads, args):
    assert reads("HF_TOKEN=x", **args) == ({}, "")


def test_a_quiet_command_does_not_mention_it(reads):
    assert reads("HF_TOKEN=x", q=True) == ({"HF_TOKEN": "x"}, "")


def test_an_unreadable_key_is_named_by_its_line(reads):
    with pytest.raises(ConfigError, match=r"line 2 of .* is not NAME=value") as caught:
        reads('\nHF_TOKEN="secret')
    assert "HF_TOKEN" not in str(caught.value)
    Path(".env").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read"):
        read_env(Namespace(command="train"))
