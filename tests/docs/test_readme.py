"""The README, and what moved out of it: examples that run, a short page, and measured figures."""

import asyncio
import importlib
import re
import sys

import pytest

from agentgym_rl import Task, check_env
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.models.resolve import BUNDLED
from tests.docs.blocks import ROOT, blocks
from tests.kit.scripted import Scripted

PACKAGE = ROOT / "agentgym_rl"
README = (ROOT / "README.md").read_text()
LOOP = (ROOT / "docs" / "loop.md").read_text()
CLAIMS = (ROOT / "docs" / "claims.md").read_text()
MEASURED = (ROOT / "docs" / "measurements.md").read_text()
PATH = re.compile(r"^\| \d+ \| \[(.+)\]\(\.\./agentgym_rl/\1\) \| (\d+) \| .+ \|$", re.MULTILINE)


def test_the_readme_is_two_screens():
    assert len(README.splitlines()) <= 110
    assert len(README.split()) <= 900


# The reading path of docs/loop.md, and the tree.


def lines(path: str) -> int:
    return len((PACKAGE / path).read_text().splitlines())


def test_the_reading_path_has_files_that_are_there_and_their_lengths():
    """Lengths within 5 %: a file grows, and no commit should have to count."""
    rows = [(path, int(number)) for path, number in PATH.findall(LOOP)]
    assert 10 <= len(rows) <= 14
    wrong = {path: lines(path) for path, count in rows if abs(lines(path) - count) > 0.05 * count}
    assert wrong == {}


def test_the_sum_of_the_reading_path_is_true():
    (total,) = re.findall(r"twelve files of ([\d,]+) lines", LOOP)
    paths = [path for path, _ in PATH.findall(LOOP)]
    assert len(paths) == 12
    counted = sum(map(lines, paths))
    assert abs(counted - int(total.replace(",", ""))) <= 0.05 * counted
    assert "twelve files" in README


def test_the_tree_in_the_readme_names_every_package():
    """A line of the tree names packages, then two spaces or more, then their subjects."""
    tree = README.partition("## The tree")[2].partition("## ")[0]
    named = re.findall(r"^  ((?:\w+ )+) ", tree, re.MULTILINE)
    packages = {entry.name for entry in PACKAGE.iterdir() if any(entry.glob("*.py"))}
    assert sorted(" ".join(named).split()) == sorted(packages)


# The agent and the environment of the README.


@pytest.fixture
def classes(tmp_path, monkeypatch):
    """The classes of the README, by name, in the module that its comments call `my_module`."""
    text = "\n\n".join(block.text for block in blocks("python", "README.md"))
    (tmp_path / "my_module.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield vars(importlib.import_module("my_module"))
    del sys.modules["my_module"]


def test_the_agent_and_the_environment_are_ten_lines_each():
    for block in blocks("python", "README.md"):
        body = block.text.partition("class ")[2].splitlines()[1:]
        assert len([line for line in body if line.strip()]) <= 12, block


def test_the_agent_solves_a_task_of_the_environment(classes):
    """An episode as a run plays it, with the model's replies from a script."""
    solution = classes["Tickets"]()
    asyncio.run(solution.reset(options={"task": Task("t", 7)}))
    call = '<tool_call>\n{"name": "price_of_a_ticket", "arguments": {}}\n</tool_call>'
    replies = [call, str(solution.count * solution.price)]
    model = Scripted(ChatFormat.load(BUNDLED))
    episode = model.play(classes["Patient"](), replies, env=classes["Tickets"])
    assert (episode.reward, episode.outcome, len(episode.rows)) == (1.0, "completed", 1)


@pytest.mark.slow  # its agents play in another process too
def test_the_environment_passes_its_check(classes):
    report = asyncio.run(check_env("my_module:Tickets"))
    assert report.failed == []
    assert report.passed


# The figures of the README and of docs/claims.md.

# The rows of docs/measurements.md from which the comparisons are taken.
SOURCES = {
    "tokens/s at 64": ("| bundled tiny (Qwen3) |", "| bundled tiny (Qwen3) |"),
    "chat turns/s": ("| ours | ", "| LiteLLM proxy |"),
    "programs/s": ("| local | 1", "| subprocess, no isolation |"),
    "math answers judged": ("| agentgym-rl | all |", "| math-verify | all |"),
}


def test_the_comparisons_are_measured():
    for start, labels in SOURCES.items():
        (row,) = [line for line in CLAIMS.splitlines() if line.startswith(f"| {start}")]
        cells = [cell.split()[0] for cell in row.split(" | ")[1:3]]
        for cell, label in zip(cells, labels, strict=True):
            rows = [line for line in MEASURED.splitlines() if line.startswith(label)]
            assert any(cell in line for line in rows), (row, label)


def test_the_reward_of_each_seed_is_measured():
    (row,) = [line for line in README.splitlines() if line.startswith("| bundled tiny model")]
    before, after = (re.findall(r"0\.\d{3}", cell) for cell in row.split(" | ")[1:3])
    for seed, pair in enumerate(zip(before, after, strict=True), start=1):
        assert f"| react, seed {seed} | {seed} | {' | '.join(pair)} |" in MEASURED
        assert " → ".join(pair) in CLAIMS


def test_the_rewards_of_the_real_model_are_measured():
    (row,) = [line for line in README.splitlines() if line.startswith("| SmolLM2")]
    before, after = (re.findall(r"0\.\d{3}", cell) for cell in row.split(" | ")[1:3])
    for seed, (low, high) in enumerate(zip(before, after, strict=True), start=1):
        found = [line for line in MEASURED.splitlines() if line.startswith(f"| seed {seed}")]
        assert any(low in line and high in line for line in found)
        assert f"{low} → {high}" in CLAIMS
