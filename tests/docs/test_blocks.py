"""Every code block of the documents is what the code takes."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from functools import cache

import pytest
from pydantic import BaseModel

from agentgym_rl.cli import load_configuration
from agentgym_rl.cli.eval_targets import evaluated
from agentgym_rl.cli.parse import make_parser, parse
from agentgym_rl.config import Config, load_config, section_types
from agentgym_rl.core import ConfigError
from tests.docs.blocks import PAGES, ROOT, Command, blocks, commands, spoken
from tests.kit.cases import cases

LANGUAGES = {"bash", "diff", "python", "toml", "yaml", "json", "text"}
# What a reader puts in the place of these. Folders of runs are looked for only when a command runs.
PLACEHOLDERS = {"FOLDER": "bundled"}
# Programs of others: that they are spelled as their shell takes them is all that can be said here.
OTHERS = {
    "PYTHON_OF_SGLANG",
    "apt-get",
    "cat",
    "cd",
    "curl",
    "echo",
    "npm",
    "ray",
    "vllm",
    "export",
    "jq",
}


@pytest.fixture(autouse=True)
def reader(tmp_path, monkeypatch):
    """The checkout, with what the pages tell a reader to have of their own."""
    for entry in ROOT.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "my.toml").write_text("")
    monkeypatch.chdir(tmp_path)


def test_every_block_says_its_language():
    assert not [str(block) for block in blocks() if block.language not in LANGUAGES]
    assert len(blocks()) >= 60


def test_configurations_are_taken(tmp_path):
    for block in (*blocks("toml"), *blocks("yaml")):
        file = tmp_path / f"shown.{block.language}"
        file.write_text(block.text)
        load_config(file, {})


def test_json_is_json():
    for block in blocks("json"):
        json.loads(block.text)


def taken(argv: Sequence[str]) -> None:
    """Parse a command of ours and, if it has some, its configuration."""
    args = parse([PLACEHOLDERS.get(word, word) for word in argv[1:]])
    names_a_run = any("runs/" in word for word in argv)  # which has to be there: see the walk
    if args.command == "eval" and not (names_a_run or args.compare):
        evaluated(args)
    elif hasattr(args, "config") and not names_a_run:
        load_configuration(args)


@cases("command", commands("arl"), ids=str)
def test_a_command_of_ours_is_taken(command):
    taken(command.argv)


def test_commands_within_sentences_have_their_flags():
    """They leave arguments out, so they are not taken whole."""
    known = keys()
    parsers_for = cache(lambda name: make_parser((name,))[1])
    for command in spoken("arl"):
        name, *words = command.argv[1:]
        if name in ("--help", "--version"):
            continue
        parsers = parsers_for(name)
        assert name in parsers, command
        flags = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        own = set(parsers[name]._option_string_actions)
        assert not [flag for flag in flags - own if flag[2:] not in known], command


def test_a_command_that_is_wrong_is_not_taken():
    for wrong in ("arl train --stepz 3", "arl train --rollout.max_stale=1", "arl lgedger RUN"):
        with pytest.raises((ConfigError, SystemExit)):
            taken(wrong.split())


def test_commands_of_other_programs_name_what_is_there():
    checks = {
        "make": check_make,
        "pip": check_pip,
        ".venv-vllm/bin/pip": check_pip,
        "python": check_python,
        "PYTHON_OF_VLLM": check_python,
    }
    for command in commands():
        program = command.argv[1] if command.argv[0] == "sudo" else command.argv[0]
        if program in checks:
            checks[program](command)
        else:
            assert program in OTHERS | {"arl"}, command


def check_make(command: Command) -> None:
    """Its targets are targets."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = [word for word in command.argv[1:] if "=" not in word]
    assert set(asked) <= set(targets), command


def check_pip(command: Command) -> None:
    """The extras it installs are extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for asked in re.findall(r"(?:agentgym-rl|\.)\[([\w,-]+)\]", " ".join(command.argv)):
        assert set(asked.split(",")) <= extras.keys(), command


def check_python(command: Command) -> None:
    """Its script or module is in the repository and knows the flags."""
    if command.argv[1] == "-m":
        if command.argv[2] in ("venv", "pip"):
            return check_pip(command)
        module = command.argv[2].replace(".", "/") + ".py"
        file = next(
            (
                top / module
                for top in (ROOT, ROOT / "envs", ROOT / "agents")
                if (top / module).is_file()
            ),
            ROOT / module,
        )
    else:
        file = ROOT / command.argv[1]
    assert file.is_file(), command
    flags = [word for word in command.argv[2:] if re.match(r"--[a-z]", word)]
    own = flags if "--" not in command.argv else []
    # A script's flags may be declared beside it.
    text = "".join(beside.read_text() for beside in file.parent.glob("*.py"))
    assert not [flag for flag in own if f'"{flag}"' not in text], command


def test_every_key_in_the_documents_is_a_key():
    """Those in `backticks`; not where the subject is what was, or what others have."""
    known = keys()
    sections = {name.partition(".")[0] for name in known if "." in name}
    for file in PAGES:
        if file.name in ("decisions.md", "glossary.md") or file.parent.name == "coming-from":
            continue
        for name in re.findall(r"`(?:--)?([a-z]+(?:\.[a-z_]+)+)(?==|`)", file.read_text()):
            if name.partition(".")[0] in sections and not OPEN.match(name):
                assert name in known, f"{file}: {name}"


# What is no key of ours: files, methods, and tables of an environment, an agent or a term.
OPEN = re.compile(r"env\.|algo\.price|(agent|sandbox)\.options|.*\.(py|toml|json|safetensors)$")


def keys(model: type[BaseModel] = Config, prefix: str = "") -> set[str]:
    """The dotted keys of a configuration, those of every variant."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found.add(prefix + name)
        for kind in section_types(field):
            found |= keys(kind, f"{prefix}{name}.")
    return found
