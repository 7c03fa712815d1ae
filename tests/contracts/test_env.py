"""What every registered environment promises; a new one is covered by being registered."""

import asyncio
import json
from pathlib import Path

import pytest
from arl_check.report import Outcome

from agentgym_rl import check_env, make
from agentgym_rl.gym import listing

from .sandboxes import working

EXAMPLES = {
    "gymnasium-v0": "gymnasium:FrozenLake-v1",
    "mix-v0": "mix:math=2,code=1",
    "reasoning_gym-v0": "reasoning_gym:chain_sum",
    "reward-v0": "reward:rewarded:exact",
}
"""What stands for an environment that must be told what to play."""
NEEDS_A_SERVER = {"openenv-v0", "textarena-v0", "verifiers-v0"}
"""Checked beside their own tests, where there is a server, or the package."""
HARBOR = "harbor:chores"
"""The second generator of `harbor-v0`, whose first is its default."""
IDS = [HARBOR] + [row.id for row in listing("env") if row.spec and row.id not in NEEDS_A_SERVER]
EPISODES = {"harbor-v0": 2, HARBOR: 2}
"""The number of tasks that are played, for environments whose episodes take seconds; else 4."""
_NO_TOOLS = {"tool-results", "call-everything"}
_NO_RANGE = {"gold", "no-op", "echo", "bad-answers"}
MAY_SKIP = {
    "gymnasium-v0": {*_NO_TOOLS, *_NO_RANGE},  # nonsense is random play, which may win
    "reasoning_gym-v0": _NO_TOOLS,
    "reward-v0": {*_NO_TOOLS, *_NO_RANGE},  # whatever one pays for
    "kuhn-v0": {*_NO_TOOLS, *_NO_RANGE},
    "tictactoe-v0": {*_NO_TOOLS, *_NO_RANGE},
}
"""Criteria that do not apply to an environment, by id; all others must be judged."""


def rows(file: Path) -> str:
    """A file of questions and answers."""
    many = [{"prompt": f"What is {n} times 7919?", "answer": n * 7919} for n in range(400)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in many))
    return str(file)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("id", IDS)
def test_every_criterion_is_met(id, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    name = EXAMPLES.get(id, id)
    options = {"data": rows(tmp_path / "rows.jsonl")} if id == "reward-v0" else {}
    if make(name, **options).needs_sandboxes:
        working("local")
    report = asyncio.run(check_env(name, episodes=EPISODES.get(id, 4), **options))
    assert report.failed == [], str(report)
    skipped = {each.id for each in report.results if each.outcome is Outcome.SKIPPED}
    assert skipped <= MAY_SKIP.get(id, set()), str(report)


@pytest.mark.slow
def test_a_process_of_its_own_keeps_the_contract():
    only = ("close",)  # a process for each of its episodes
    name = "gymnasium:FrozenLake-v1"
    report = asyncio.run(check_env(name, episodes=1, only=only, executor="process"))
    assert report.failed == [], str(report)
