"""Judges and reward models that the options of the reward environment describe."""

import json
import re
from typing import Any

import pytest
from arl_envs.reward.options import Options

from agentgym_rl import Step, make
from agentgym_rl.core import ConfigError, EnvError, InfraError
from agentgym_rl.gym import spec
from tests.kit.cases import cases
from tests.kit.judge_server import ScriptedJudge, score

from .test_reward_env import ENV, data, write

__all__ = ["data"]

RUBRIC = [
    {"name": "right", "text": "Is it right?", "weight": 3},
    {"name": "brief", "text": "Is it brief?", "high": 5},
]
JUDGE = {"model": "m", "base_url": "http://x"}
SAID = {"role": "assistant", "content": "forty"}


def judged(data: str, decide: Any, *, rows: int = 1, key: str = "judge", **options: Any):
    """The steps of episodes that a scripted judge rewards, and its server."""
    server = ScriptedJudge(decide)

    async def play(url: str) -> list[Step]:
        table = {"model": "m", "base_url": url + "/v1" * (key == "judge")}
        given = {"data": data, key: table, "rubric": RUBRIC, "rows": {"eval_fraction": 0}} | options
        given = given if key == "judge" else {k: v for k, v in given.items() if k != "rubric"}
        tasks, steps = spec(ENV).task_source("train", seed=0, **given), []  # type: ignore[union-attr]
        for number in range(rows):
            env = make(ENV, **given)
            await env.reset(options={"task": tasks[number]})
            steps.append(await env.step(SAID))
            await env.close()
        return steps

    return server.during(play), server


def test_a_judge_of_the_options_rewards_by_its_rubric(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"prompt": "2 + 2?", "gold": 4})

    def decide(request):
        return score(10 if "Is it right?" in request["messages"][0]["content"] else 1)

    ([step], server) = judged(path, decide, reference_field="gold")
    assert step.reward == pytest.approx((3 * 1 + 0.2) / 4)
    parts = {"right": 1.0, "brief": 0.2, "judge_calls": 2.0, "judge_tokens": 220.0}
    assert step.info["reward_components"] == step.info["metrics"] == parts
    for request in server.requests:
        quoted = re.findall(r"BEGIN (\w+) \w+\n(.*)\nEND", request["messages"][1]["content"])
        assert quoted == [("question", "2 + 2?"), ("reference", "4"), ("answer", "forty")]


def test_a_rubric_may_be_a_text_and_a_judge_a_panel(tmp_path):
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 2?"}]
    path, answers = write(tmp_path / "rows.jsonl", {"prompt": chat}), [1, 9, 3]
    server = ScriptedJudge(lambda request: score(answers[int(request["model"])]))

    async def play(url: str) -> Step:
        panel = [{"model": str(n), "base_url": f"{url}/v1"} for n in range(3)]
        env = make(ENV, data=path, judge=panel, rubric="Is it right?", rows={"eval_fraction": 0})
        await env.reset(seed=1)
        return await env.step(SAID)

    step = server.during(play)
    assert (step.reward, step.info["reward_components"]["score"]) == (0.3, 0.3)
    text = server.requests[0]["messages"][1]["content"]
    assert "system: Add.\n\nuser: 2 + 2?" in text


def test_a_reward_model_of_the_options_scores_the_conversation(data):
    body = {"data": [{"probs": [-3.5]}], "usage": {"prompt_tokens": 9}}
    ([step], server) = judged(data, lambda _: (200, json.dumps(body).encode()), key="reward_model")
    assert (step.reward, step.info["metrics"]["judge_tokens"]) == (-3.5, 9.0)
    assert [m["role"] for m in server.requests[0]["messages"]] == ["user", "assistant"]


def test_episodes_share_a_judge_and_its_limits(data):
    one = Options(data=data, judge={"model": "m", "base_url": "http://x"}, rubric="Right?")
    two = Options(data=data, judge={"base_url": "http://x", "model": "m"}, rubric="Right?")
    assert one.judged() is two.judged()
    assert one.limit_s() == 3 * 3 * (4 * 60 + 3 * 8)
    assert make(ENV, data=data, judge=one.judge, rubric="Right?").step_timeout_s == one.limit_s()
    few = {**JUDGE, "timeout_s": 5, "max_retries": 0, "max_asks": 1}
    assert Options(data=data, judge=[few, few], rubric="Right?").limit_s() == 3 * 5


def test_a_judge_that_is_down_is_infrastructure_and_one_that_refuses_is_not(data, monkeypatch):
    monkeypatch.setattr("arl_envs.judge.endpoint._FIRST_WAIT_S", 0.0)
    with pytest.raises(InfraError, match="503"):
        judged(data, lambda _: (503, b"down"))
    with pytest.raises(EnvError, match="401"):
        judged(data, lambda _: (401, b"no"))
    with pytest.raises(EnvError, match="reference_field 'gold': the row has prompt, least"):
        judged(data, lambda _: score(1), reference_field="gold")


@cases(
    "options, said",
    [
        ({}, "given by nothing; expected one of a function"),
        ({"function": "m:f", "judge": JUDGE, "rubric": "?"}, "given by function and judge"),
        ({"function": "m:f", "rubric": "?"}, "rubric without a judge does nothing"),
        ({"reward_model": JUDGE, "reference_field": "a"}, "reference_field without a judge"),
        ({"judge": JUDGE}, "rubric: got .*, expected what the judge is asked"),
        ({"judge": JUDGE, "rubric": [{"name": "a"}]}, r"rubric\[0\]\.text: Missing required"),
        ({"judge": JUDGE, "rubric": ["a"]}, r"rubric\[0\]: got 'a', expected a table with some of"),
        ({"judge": JUDGE, "rubric": [RUBRIC[0]] * 2}, "criteria of different names"),
        ({"judge": {**JUDGE, "modell": 1}, "rubric": "?"}, "judge.modell: .*keys of judge are mod"),
        ({"judge": {**JUDGE, "max_tokens": "x"}, "rubric": "?"}, "judge.max_tokens: .*got 'x'"),
        ({"judge": {"model": "m"}, "rubric": "?"}, "expected a URL such as"),
        ({"judge": [JUDGE], "rubric": "?"}, "a panel of 1 judges"),
        ({"judge": [JUDGE, 3], "rubric": "?"}, r"judge\[1\]: got 3, expected a table"),
        ({"judge": "m", "rubric": "?"}, "judge: got 'm', expected a table"),
        ({"reward_model": {"model": "m"}}, "reward_model.base_url: Missing required"),
        ({"judge": JUDGE, "rubric": "?", "executor": "pool"}, "a judge works with 'inline' alone"),
    ],
)
def test_judges_that_cannot_work(data, options, said):
    with pytest.raises(ConfigError, match=said):
        spec(ENV).task_source("train", seed=0, data=data, **options)  # type: ignore[union-attr]
