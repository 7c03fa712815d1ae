"""The releases of another project that can be driven, and the packages of an interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentgym_rl.core import ConfigError
from agentgym_rl.engines.builds import (
    Build,
    Releases,
    ask_packages,
    dotted,
    interpreter,
    parse_release,
    probe_build,
)
from agentgym_rl.gym import Probe
from tests.kit.cases import cases
from tests.kit.extension import install

TOOL = Releases(
    title="Tool",
    lowest=(1, 2),
    below=(2, 0),
    spans_since=(1, 4, 1),
    without_spans=("abort", "wait"),
    hint="; pip install tool",
)


@cases("version, fits", [("1.2", 1), ("1.1.9", 0), ("1.99.0+cpu", 1), ("2.0", 0), ("dev", 0)])
def test_releases_from_the_lowest_to_below_the_last_can_be_driven(version, fits):
    if fits:
        return TOOL.check(version, where="/p")
    with pytest.raises(ConfigError) as refused:
        TOOL.check(version, where="/p")
    assert str(refused.value) == (
        f"/p has Tool {version}; supported is >=1.2,<2.0; pip install tool"
    )


def test_a_build_is_a_checked_release():
    assert TOOL.build("/p", "1.4.1", is_cpu=True) == Build("/p", "1.4.1", True, True)
    assert TOOL.build("/p", "1.4", is_cpu=False) == Build("/p", "1.4", False, False)
    with pytest.raises(ConfigError, match=r"/p has Tool 3\.0"):
        TOOL.build("/p", "3.0", is_cpu=True)


def test_an_interrupt_needs_the_version_of_each_token():
    for interrupt in ("keep", "abort"):
        TOOL.check_interrupt(interrupt, has_spans=True, where="u")
    TOOL.check_interrupt("abort", has_spans=False, where="u")
    with pytest.raises(ConfigError, match=r"Tool at u .*interrupt 'abort' or 'wait', got 'keep'"):
        TOOL.check_interrupt("keep", has_spans=False, where="u")


@cases(
    "text, release",
    [
        ("0.32.0", (0, 32, 0)),
        ("0.32.0.post1", (0, 32, 0)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("7", (7,)),
        ("v1", ()),
    ],
)
def test_a_release_is_the_numbers_at_its_beginning(text, release):
    assert parse_release(text) == release
    assert dotted(release) == ".".join(map(str, release))


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_is_found_by_its_name_or_is_the_running_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    there = program(tmp_path / "python9", "true")
    assert interpreter("python9") == there
    assert interpreter("nowhere") == str(tmp_path / "nowhere")
    assert interpreter("") == os.path.abspath(sys.executable)


def test_an_interpreter_has_packages_and_entry_points(tmp_path, monkeypatch):
    points = {"stones": {"flint": "theirs_mod:F", "opal": "theirs_mod:O"}}
    folder = install(tmp_path / "theirs", {}, points)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    found, values = ask_packages(sys.executable, "theirs", "nowhere", group="agentgym_rl.stones")
    assert (found, sorted(values)) == ({"theirs": "1.0"}, ["theirs_mod:F", "theirs_mod:O"])
    assert ask_packages(sys.executable, "theirs") == ({"theirs": "1.0"}, [])


@cases(
    "body, said",
    [
        ("echo it is broken >&2; exit 3", "exit status 3 it is broken$"),
        ("exit 3", "exit status 3$"),
        ("true", "IndexError"),
        ("echo hello", "JSONDecodeError"),
        ("echo '[1]'", "ValueError"),
    ],
)
def test_what_is_no_interpreter_is_named_with_the_reason(tmp_path, body, said):
    python = program(tmp_path / "python", body)
    with pytest.raises(ConfigError, match=f"'{python}' is no Python interpreter .*: {said}"):
        ask_packages(python, "numpy")
    with pytest.raises(ConfigError, match=r"nowhere' is no Python .*FileNotFoundError"):
        ask_packages(str(tmp_path / "nowhere"), "numpy")


def test_only_the_last_line_of_an_interpreter_counts(tmp_path):
    python = program(tmp_path / "python", 'echo loading; echo \'[{"a": "1"}, []]\'')
    assert ask_packages(python, "a") == ({"a": "1"}, [])


def test_a_probe_has_the_build_or_the_fix():
    found = probe_build("Tool", lambda: Build("/p", "1.4", True, False))
    assert found == Probe("Tool", True, "1.4, CPU build (/p)", required=False)
    found = probe_build("Tool", lambda: Build("/p", "1.4", False, True))
    assert found.detail == "1.4, GPU build (/p)"

    def missing() -> Build:
        raise ConfigError("no Tool")

    lacking = probe_build("Tool", missing)
    assert (lacking.ok, lacking.detail, lacking.required) == (False, "no Tool", False)
    assert "--engine.type=tool --engine.python=FILE (arl docs tool)" in lacking.fix
