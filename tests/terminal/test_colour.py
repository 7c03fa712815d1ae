"""Colour as the conventions choose it; without it a text stays as it is."""

import io
import re

import pytest
from arl_terminal.colour import colour, shows_colour

from agentgym_rl.cli import main as cli
from tests.kit.cases import cases


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@cases(
    "variables, on_terminal, on_file",
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_the_environment_chooses(monkeypatch, variables, on_terminal, on_file):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (shows_colour(Terminal()), shows_colour(io.StringIO())) == (on_terminal, on_file)


SUMMARY = (
    "held-out reward  0.347 → 0.512\n                 95 % intervals\n\nnext: arl inspect runs/a"
)


def test_parts_of_a_text_are_coloured_and_none_is_lost(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = colour("result", SUMMARY, Terminal())
    assert "\x1b[1mheld-out reward\x1b[0m  0.347" in shown
    assert "next: \x1b[36marl inspect runs/a\x1b[0m" in shown
    assert re.sub(r"\x1b\[[\d;]*m", "", shown) == SUMMARY
    assert colour("result", SUMMARY, io.StringIO()) == SUMMARY
    assert colour("error", "arl: no", Terminal()) == "\x1b[1;31marl:\x1b[0m no"


@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["train", "--stepz"]])
def test_commands_show_the_same_text_with_and_without(monkeypatch, capsys, argv):
    found = []
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv(name, "1")
        with pytest.raises(SystemExit):
            cli.main(argv)
        found.append("".join(capsys.readouterr()))
    assert "\x1b[" not in found[0]
    assert "\x1b[" in found[1]
    assert re.sub(r"\x1b\[[\d;]*m", "", found[1]) == found[0]
