"""The numbers of the README: the reading path, the tree, and the measured results."""

import re

from tests.docs.blocks import ROOT

PACKAGE = ROOT / "agentgym_rl"
README = (ROOT / "README.md").read_text()
PATH = re.compile(r"^\| \d+ \| \[(.+)\]\(agentgym_rl/\1\) \| (\d+) \| .+ \|$", re.MULTILINE)


def lines(path: str) -> int:
    return len((PACKAGE / path).read_text().splitlines())


def test_the_reading_path_has_files_that_are_there_and_their_lengths():
    """Lengths within 5 %: a file grows, and no commit should have to count."""
    rows = [(path, int(number)) for path, number in PATH.findall(README)]
    assert 10 <= len(rows) <= 14
    wrong = {path: lines(path) for path, count in rows if abs(lines(path) - count) > 0.05 * count}
    assert wrong == {}


def test_the_sum_of_the_reading_path_is_true():
    (told,) = re.findall(r"twelve files of ([\d,]+) lines", README)
    paths = [path for path, _ in PATH.findall(README)]
    assert len(paths) == 12
    total = sum(map(lines, paths))
    assert abs(total - int(told.replace(",", ""))) <= 0.05 * total


def test_the_tree_in_the_readme_names_every_package():
    tree = README.partition("## The tree")[2].partition("## ")[0]
    named = set(re.findall(r"^  (\w+) ", tree, re.MULTILINE))
    packages = {entry.name for entry in PACKAGE.iterdir() if any(entry.glob("*.py"))}
    assert named == packages


# The rows of docs/measurements.md from which the comparisons of the README are taken.
SOURCES = {
    "tokens/s at 64": ("| bundled tiny (Qwen3) |", "| bundled tiny (Qwen3) |"),
    "chat turns/s": ("| ours | ", "| LiteLLM proxy |"),
    "programs/s": ("| local | 1", "| subprocess, no isolation |"),
    "math answers judged": ("| agentgym-rl | all |", "| math-verify | all |"),
}


def test_the_comparisons_of_the_readme_are_measured():
    measured = (ROOT / "docs" / "measurements.md").read_text().splitlines()
    for start, labels in SOURCES.items():
        (row,) = [line for line in README.splitlines() if line.startswith(f"| {start}")]
        cells = [cell.split()[0] for cell in row.split(" | ")[1:3]]
        for cell, label in zip(cells, labels, strict=True):
            rows = [line for line in measured if line.startswith(label)]
            assert any(cell in line for line in rows), (row, label)


def test_the_reward_of_each_seed_in_the_readme_is_measured():
    measured = (ROOT / "docs" / "measurements.md").read_text()
    before, after = (
        re.findall(r"0\.\d{3}", line)[:3]
        for line in README.splitlines()
        if line.startswith(("| before |", "| after |"))
    )
    for seed, pair in enumerate(zip(before, after, strict=True), start=1):
        assert f"| react, seed {seed} | {seed} | {' | '.join(pair)} |" in measured
