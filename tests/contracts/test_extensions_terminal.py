"""Formats of configuration files, hints, checks and colours that other packages add."""

import json
import sys

import pytest

from agentgym_rl.cli import main as cli
from agentgym_rl.cli.parse import parse
from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.rollout import check_machine
from tests.kit.extension import install

SHELL = """
def lines(text):
    return dict(line.split("=", 1) for line in text.splitlines())

def hint(kind, name, given):
    return f"{given['command']} has no {name}" if (kind, name) == ("flag", "velocity") else ""

def check(config, trains):
    if config.seed == 13 and trains:
        yield "seed 13: not on a Friday"

def shout(kind, text, stream):
    return text.upper() if kind == "error" else text

def greet(args):
    print("before", args.command)
"""


@pytest.fixture(autouse=True)
def theirs(tmp_path, monkeypatch):
    points = {
        "config_files": {"env": "theirs_shell:lines"},
        "hints": {"mine": "theirs_shell:hint"},
        "checks": {"friday": "theirs_shell:check"},
        "colours": {"loud": "theirs_shell:shout"},
        "before_commands": {"greeting": "theirs_shell:greet"},
    }
    folder = install(tmp_path / "theirs", {"theirs_shell": SHELL}, points)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("theirs_shell", None)


def test_a_format_of_configuration_files_is_found_by_its_ending(tmp_path):
    (tmp_path / "run.env").write_text("seed=7\nsteps=3")
    config = load_config(tmp_path / "run.env", {"steps": "2"})
    assert (config.seed, config.steps) == (7, 2)
    (tmp_path / "run.env").write_text("seed")
    with pytest.raises(ConfigError, match=r"cannot read configuration .*run.env"):
        load_config(tmp_path / "run.env")


def test_a_hint_of_another_package_is_shown():
    with pytest.raises(ConfigError, match="'--velocity=3'; train has no velocity"):
        parse(["train", "--velocity=3"])


def test_a_check_of_another_package_is_made_before_a_run():
    check_machine(load_config(None, {"seed": 13}), trains=False)
    with pytest.raises(ConfigError, match="seed 13: not on a Friday"):
        check_machine(load_config(None, {"seed": 13}), trains=True)


def test_texts_and_the_arguments_of_a_command_go_through_other_packages(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["new", "env", "Wrong Name"])
    found = capsys.readouterr()
    assert end.value.code == 2
    assert found.out == "before new\n"
    assert found.err.startswith("ARL: 'WRONG NAME' CANNOT NAME AN ENVIRONMENT")


def test_they_are_listed(capsys):
    with pytest.raises(SystemExit):
        cli.main(["list", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    kinds = {row["id"]: row["kind"] for row in rows}
    assert kinds["env"] == "format of configurations"
    assert kinds["friday"] == "check before a run"
    assert kinds["greeting"] == "work before a command"
    assert (kinds["mine"], kinds["loud"]) == ("hint", "colour")
