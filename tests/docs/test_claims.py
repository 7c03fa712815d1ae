"""Every row of docs/claims.md names a test or a benchmark that its command runs."""

import re
from pathlib import Path

import pytest
from arl_check.criteria import CRITERIA

from tests.docs.blocks import ROOT
from tests.kit.cases import cases

PAGE = (ROOT / "docs" / "claims.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
ENVS_TESTS = re.findall(r"tests/\S+", MAKEFILE.partition("ENVS_TESTS :=")[2].partition(" :=")[0])
"""The tests of `make test-envs`, which `make test` leaves out."""
HEAD = "| claim | figure | shown by | command |"


def rows() -> list[list[str]]:
    """Return the cells of the rows of all tables of claims."""
    found: list[list[str]] = []
    for table in PAGE.split(HEAD)[1:]:
        lines = table.partition("\n\n")[0].strip().splitlines()[1:]
        found += [[cell.strip() for cell in line[1:].split(" |")[:-1]] for line in lines]
    return found


def recipe(target: str) -> str:
    """Return the part of the Makefile that begins with a target, up to the next empty line."""
    return MAKEFILE.partition(f"\n{target}:")[2].partition("\n\n")[0]


def runs(command: str, path: str) -> bool:
    """Return whether a command runs a test: make test all but those of the environments."""
    of_envs = any(Path(path).is_relative_to(suite) for suite in ENVS_TESTS)
    if command == "make test":
        return not of_envs
    text = recipe(command.removeprefix("make ")).replace("$(ENVS_TESTS)", " ".join(ENVS_TESTS))
    return any(Path(path).is_relative_to(word) for word in text.split())


@cases("row", rows(), ids=lambda row: row[0][:60])
def test_a_claim_is_shown_by_what_its_command_runs(row):
    _claim, _figure, shown, command = row
    tests = re.findall(r"\(\.\./(tests/[^)]+)\)", shown)
    suites = [name for name in re.findall(r"`([^`]+)`", command) if name.startswith("make test")]
    assert [test for test in tests if not (ROOT / test).exists()] == []
    assert [test for test in tests if suites and not any(runs(it, test) for it in suites)] == []
    assert [it for it in suites if not any(runs(it, test) for test in tests)] == []
    assert tests or "measurements.md#" in shown


@cases("row", rows(), ids=lambda row: row[0][:60])
def test_the_command_of_a_claim_exists(row):
    """Targets are in the Makefile; scripts and benchmarks are files."""
    commands = re.findall(r"`([^`]+)`", row[3])
    assert commands
    for program, word, name in ((*command.split(), "")[:3] for command in commands):
        if program == "make":
            assert f"\n{word}:" in MAKEFILE
        elif program == "python":
            assert (ROOT / word).is_file()
        else:
            assert (program, word) == ("arl", "bench")
            assert (ROOT / "benchmarks" / f"{name}.py").is_file()


def test_the_claims_are_read():
    assert len(rows()) >= 30
    assert f"| {len(CRITERIA)} checks |" in PAGE


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("make test", "tests/security/test_hacks.py"),
        ("make test-envs", "tests/gateway/test_exact.py"),
        ("make test-vllm", "tests/sglang/test_interrupts.py"),
    ],
)
def test_a_suite_that_does_not_run_a_test_is_seen(command, path):
    assert not runs(command, path)
