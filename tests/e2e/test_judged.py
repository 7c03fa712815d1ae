"""A run that a judge rewards, described by keys alone: its cost, its log, and a resume."""

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from agentgym_rl.report import training_text
from agentgym_rl.storage import EpisodeLog
from tests.kit.judge_server import ScriptedJudge, score

from .forked import arl

pytestmark = pytest.mark.slow

STEPS, EPISODES = 3, 16
"""The batches, and the episodes of each."""


def by_length(request: dict) -> str:
    answer = re.search(
        r"BEGIN answer (\w+)\n(.*)\nEND \w+ \1", request["messages"][1]["content"], re.S
    )
    assert answer is not None
    return score(min(10, len(answer[2]) // 4))


def keys(tmp_path: Path, url: str) -> list[str]:
    rows = [{"prompt": f"What is {n} + 2?", "gold": n + 2} for n in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rubric = (
        '[{name = "right", text = "Is it right?", weight = 2}, {name = "kind", text = "Kind?"}]'
    )
    return [
        *("--env=reward", f"--data={path}", "--agent=single_turn", "--model=bundled/math"),
        *(f"--steps={STEPS}", "--eval.num_tasks=2", "--rollout.max_staleness=0"),
        f"--env.options.judge.base_url={url}/v1",
        *("--env.options.judge.model=m", f"--env.options.rubric={rubric}"),
        *("--env.options.judge.price_prompt=3", "--env.options.judge.price_completion=15"),
        "--env.options.reference_field=gold",
    ]


def episodes_of(folder: Path) -> list:
    log = EpisodeLog(folder / "episodes.db")
    found = list(log.trajectories())
    log.close()
    return found


def whole_groups(folder: Path) -> list:
    """The episodes of groups that were finished."""
    found = episodes_of(folder)
    sizes = Counter(one.group_id for one in found)
    return [one for one in found if sizes[one.group_id] == 4]


def test_a_run_with_a_judge_tells_its_cost_and_logs_its_scores(start, tmp_path):
    server = ScriptedJudge(by_length)
    with server.beside() as url:
        run = start(*keys(tmp_path, url))
        result = run.result()
    spent, cost = result["judges"], (100 * 3 + 10 * 15) / 1e6
    calls = 2 * STEPS * EPISODES
    assert len(server.requests) == calls + 2 * 2 * 2  # and those of two evaluations
    assert (spent["judge_calls"], spent["judge_tokens"]) == (calls, 110 * calls)
    assert spent["judge_usd"] == pytest.approx(calls * cost)
    assert f"{calls} calls, 10,560 tokens, $0.0432" in training_text(result)
    episodes = episodes_of(run.folder)
    assert len(episodes) == STEPS * EPISODES
    for one in episodes:
        parts = one.metrics
        assert one.reward == pytest.approx((2 * parts["right"] + parts["kind"]) / 3)
        assert parts["judge_calls"] == 2
    step = run.metrics()[0]
    assert step["episode/judge_usd"] == pytest.approx(2 * cost)
    assert {"episode/right", "episode/kind"} <= step.keys()


def test_a_judge_that_dies_costs_no_reward_and_a_killed_run_goes_on(start, tmp_path):
    """What was judged before the kill is in the log, and is not judged again."""
    down = [True]

    def decide(request):
        if down[0] and len(server.requests) > 2 * EPISODES and len(server.requests) % 7 == 0:
            return 503, b"overloaded"
        return by_length(request)

    server = ScriptedJudge(decide)
    with server.beside() as url:
        run = start(*keys(tmp_path, url), "--trainer.checkpoint_every=1", "--steps=6")
        run.wait_for_step(1)
        os.kill(run.process.pid, signal.SIGKILL)
        run.wait(30)
        before = {one.episode_id: one.reward for one in whole_groups(run.folder)}
        down[0] = False
        done = arl("train", "--resume", run.folder, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    after = episodes_of(run.folder)
    assert before.items() <= {one.episode_id: one.reward for one in after}.items()
    assert len(after) == 6 * EPISODES
    assert result["outcomes"].keys() == {"completed"}
    assert len(before) >= 2 * EPISODES
    assert 0 < result["judges"]["judge_calls"] <= 2 * (len(after) - len(before))
