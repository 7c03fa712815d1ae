"""Every row of docs/coming-from/: what it says is ours exists, and means what the row says.

A name in backticks is theirs if it is in the first column, or stands before "is", "are" or "has"
and another name ("`token-mean` is `token`"). Every other one is ours: a key, a value of a key that
the row names, a command, a flag, a name of Python, a metric, a file. A comment at the end of a row
names the rows of docs/data/peers.txt that it rests on, by the beginnings of their names.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest
from arl_check.criteria import CRITERIA

from tests.docs.blocks import ROOT
from tests.docs.rows import Line, doubtful, kind_of, lines, prose, read
from tests.kit.cases import cases

SYSTEMS = {"areal": "AReaL", "nemo-rl": "NeMo RL", "trl": "TRL", "verl": "verl"}
"""The pages whose rows on the objective are compared number by number, and their systems."""
UNCOMPARED = {
    "areal: `turn_discount`": "AReaL's runs in the order of sampling, ours along the tree",
    "nemo-rl: `overlong_filtering`": "it selects episodes, and has no formula",
    "trl: `reward_funcs=[f, g]`, `reward_weights`": "TRL has no advantage of a part alone",
    "trl: `mask_truncated_completions`": "it selects episodes, and has no formula",
    "verl: `algorithm.use_kl_in_reward`": "the estimates are compared, in the row above",
}
"""The rows on the objective that are not compared, with the reason."""


@cases("line", lines(), ids=str)
def test_a_row_is_held(line):
    """Every name of ours exists, and there is one, unless the row says that there is none."""
    assert [name for name in line.ours if not kind_of(name, line)] == []
    assert line.in_here == [] if line.says_none else line.ours != []


def test_keys_and_flags_of_paragraphs_are_held():
    held = [(name, kind_of(name, line)) for line in prose() for name in line.ours]
    assert [name for name, kind in held if not kind] == []
    assert len(held) >= 10


def test_every_table_is_read():
    assert {line.page for line in lines()} == {*SYSTEMS, "gymnasium", "verifiers"}
    assert len(lines()) > 140
    assert sum(len(line.ours) for line in lines()) > 300


@cases(
    "here, more",
    [
        ("`rollout.max_stale`", ""),
        ("`rollout.groups_per_batch`", "`group_sizes`"),
        ('`algo.baseline = "leave_two_out"`', ""),
        ("`algo.whiten.over`", '`eps_in = "roof"`'),
        ("`algo.behavior_correction`: `mask`, `drop`", ""),
        ("`weights.transport`", "`rdma`"),
        ("`rollout.should_accept`", "`mixed_reward`"),
        ("`arl tarin`", ""),
        ("`arl eval --stepz 3`", ""),
        ("`--env mixed:math=2`", ""),
        ("`--rollout.group_size=0`", ""),
        ("`Env.steps(action)`", ""),
        ("`Env.step(turn)`", ""),
        ("`agentgym_rl.gym.wrappers`: `StepLimit`", ""),
        ("`mismatch/token_mult_prob_error`", "`js_error`"),
        ("`metric.jsonl`", ""),
        ("`agentgym_rl/controller/buffers.py`", ""),
        ("`POST session`", ""),
        ("`cluster.allocation`", "`vllm:d2fsdp`"),
    ],
)
def test_a_row_that_names_what_is_not_there_is_seen(here, more):
    line = read("made-up", f"| `theirs` | {here} | {more} |")
    assert [name for name in line.ours if not kind_of(name, line)] == [line.ours[-1]]


def test_a_row_without_a_name_of_ours_and_one_that_denies_what_it_names_are_seen():
    assert read("x", "| `theirs` | the buffer | |").ours == []
    denied = read("x", "| `theirs` | no equivalent: `rollout.group_size` | |")
    assert denied.says_none
    assert denied.in_here


def test_the_pages_count_the_checks_of_an_environment():
    pages = [file.read_text() for file in (ROOT / "docs" / "coming-from").glob("*.md")]
    counts = [int(count) for page in pages for count in re.findall(r"(\d+) checks", page)]
    assert counts == [len(CRITERIA)] * 2


# The comparison number by number.


def peers() -> dict[tuple[str, str], str]:
    """Return the verdict of each row of the comparison, by system and name."""
    found: dict[tuple[str, str], str] = {}
    for text in (ROOT / "docs" / "data" / "peers.txt").read_text().splitlines():
        if not text.startswith("#"):
            verdict, system, name, _ = text.split(" | ")
            found[system, re.sub(r" \[(loss|grad)\]$", "", name)] = verdict
    return found


def claimed(line: Line) -> set[tuple[str, str]]:
    """Return the rows of the comparison that a row of a page rests on."""
    system = SYSTEMS.get(line.page, "")
    found: set[tuple[str, str]] = set()
    for start in line.compared:
        its = {key for key in peers() if key[0] == system and fnmatch(key[1], f"{start}*")}
        assert its, f"{line}: no row of docs/data/peers.txt begins with {start!r}"
        found |= its
    return found


def test_a_row_rests_on_the_verdict_that_it_says():
    verdicts = peers()
    for line in lines():
        said = "cannot be said" if line.says_none else "agree"
        assert {verdicts[key] for key in claimed(line)} <= {said}, line


def test_every_comparison_is_a_row_of_a_page():
    assert set(peers()) - {key for line in lines() for key in claimed(line)} == set()


def test_every_row_on_the_objective_is_compared():
    objective = [
        str(line)
        for line in lines()
        if line.page in SYSTEMS
        and any(name.lstrip("-").startswith("algo.") for name in line.ours)
        and not line.compared
    ]
    assert sorted(objective) == sorted(UNCOMPARED)
    assert len(UNCOMPARED) == 5


# "Only there": the paragraph of what we lack.


def only_there() -> dict[str, str]:
    """Return the list of each page of what the other system alone has."""
    found = {}
    for file in (ROOT / "docs" / "coming-from").glob("*.md"):
        for text in re.findall(r"\*\*Only there:\*\*(.+?)\*\*Only here", file.read_text(), re.S):
            found[file.stem] = " ".join(text.split())
    return found


def test_what_is_only_there_is_not_here():
    assert only_there().keys() == {*SYSTEMS, "verifiers"}
    assert [each for text in only_there().values() for each in doubtful(text)] == []


@pytest.mark.parametrize("text", ["SGLang, FP8", "tree training and NPUs", "Muon"])
def test_what_is_here_too_is_seen(text):
    assert len(doubtful(text)) == 1
