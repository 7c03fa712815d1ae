"""The tools environment: gold play, one thing wrong at a time, questions, tasks."""

import asyncio
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from arl_envs.tools.env import NEEDLESS, ToolsEnv
from arl_envs.tools.levels import level_of
from arl_envs.tools.problem import problem_of
from arl_envs.tools.shop import WRITES

from agentgym_rl import make
from agentgym_rl.core import ConfigError, EnvError, Task
from tests.kit.cases import cases

from .kit import LEVELS, call, gold, how_many, run, say, started, tasks


@pytest.mark.slow
@cases("level", LEVELS)
@cases("split", ["train", "eval"])
def test_gold_play_scores_one(level, split):
    for task in tasks(level, 50, split=split):
        *before, last = gold(started(task))
        assert all(step[1:4] == (0.0, False, False) for step in before)
        assert (last.reward, last.terminated, last.info["verifier"]) == (1.0, True, "ok")
        assert set(last.info["reward_components"].values()) == {1.0}


@pytest.mark.slow
@cases("level", LEVELS)
def test_gold_play_scores_one_on_another_seed(level):
    source = ToolsEnv.task_source("train", seed=11, level=level)
    for task in (source[i] for i in range(80)):
        assert gold(started(task))[-1].reward == 1.0


@cases("level", LEVELS)
def test_the_gold_fits_into_the_turns(level):
    env = make("arl_envs.tools:SPEC", level=level)
    for task in tasks(level, 15):
        asyncio.run(env.reset(options={"task": task}))
        assert [run(env.step(m)) for m in env.solve() or ()][-1].reward == 1.0


@cases("level", LEVELS)
def test_one_call_less_or_another_answer_scores_zero(level):
    for task in tasks(level, 15):
        plan = list(started(task).solve() or ())
        needed = [i for i, m in enumerate(plan[:-1]) if not m.get("tool_calls") or _writes(m)]
        for missing in needed:
            env = started(task)
            steps = [run(env.step(m)) for i, m in enumerate(plan) if i != missing]
            # a refused call changes nothing: only its number, which is then a guess, was paid for
            assert steps[-1].reward == float(_refused(task, plan[missing]))
        env = started(task)
        for message in plan[:-1]:
            run(env.step(message))
        assert run(env.step(say(plan[-1]["content"] + "1"))).reward == 0.0


def _writes(message):
    return message["tool_calls"][0]["function"]["name"] in WRITES


def _refused(task, message):
    env = started(task)
    for each in env.solve() or ():
        step = run(env.step(each))
        if each.get("tool_calls") == message.get("tool_calls"):
            return bool(step.observation) and "refused" in step.observation[0]["content"]
    return False


@cases("level", LEVELS)
def test_a_side_effect_scores_zero(level):
    for task in tasks(level, 15):
        env = started(task)
        *before, last = env.solve() or ()
        for message in before:
            run(env.step(message))
        env.database.run("UPDATE customers SET phone = 1 WHERE name = ?", _somebody(env))
        step = run(env.step(last))
        assert (step.reward, step.info["reward_components"]["state"]) == (0.0, 0.0)


def _somebody(env):
    return env.database.all("SELECT name FROM customers")[-1][0]


def test_trying_what_nobody_asked_for_scores_zero():
    task = tasks(1, 1)[0]
    env = started(task)
    *before, last = env.solve() or ()
    for message in before:
        run(env.step(message))
    open_order, *_ = env.database.all("SELECT id FROM orders WHERE status != 'open'")[0]
    (tried,) = run(env.step(call("cancel_order", order=open_order))).observation
    assert tried["content"].startswith("error: refused, order is ")
    parts = run(env.step(last)).info["reward_components"]
    assert parts == {"answer": 1.0, "state": 1.0, "asked_for": 0.0, "questions": 1.0}


def test_what_is_left_open_must_be_asked_however_well_it_is_guessed():
    for task in tasks(3, 20, ambiguity=1.0):
        env = started(task)
        for message in env.solve() or ():
            if message.get("tool_calls") or message["content"].startswith("Answer"):
                step = run(env.step(message))
        assert (step.reward, step.info["reward_components"]["questions"]) == (0.0, 0.0)
        assert step.info["reward_components"]["state"] == 1.0


def test_the_user_replies_to_questions_and_to_three_at_most():
    task = tasks(3, 1, ambiguity=1.0)[0]
    env = started(task)
    looked = itertools.takewhile(lambda m: m.get("tool_calls"), env.solve() or ())
    for message in looked:
        run(env.step(message))
    *replied, last = [run(env.step(say("Which one?"))) for _ in range(4)]
    assert [step.terminated for step in (*replied, last)] == [False, False, False, True]
    first, *more = [step.observation[0]["content"] for step in replied]
    assert (first[:4], more) == ("The ", [NEEDLESS, NEEDLESS])


def test_an_answer_is_no_question():
    step = run(started(tasks(1, 1)[0]).step(say("Answer: done\nAnything else?")))
    assert (step.terminated, step.info["verifier"]) == (True, "unparseable")


@pytest.mark.slow
@cases("level", LEVELS)
def test_no_request_is_in_both_splits(level):
    train, held_out = (
        {t.data["request"] for seed in (0, 1) for t in tasks(level, 60, split=split, seed=seed)}
        for split in ("train", "eval")
    )
    assert not train & held_out


@how_many
@cases("level", LEVELS)
def test_tasks_differ_and_are_small_json(level, num):
    found = tasks(level, num)
    worlds = {(t.data["request"], problem_of(level_of(level), t.seed).end) for t in found}
    assert len(worlds) == num
    assert all(len(json.dumps(dict(t.data))) < 1000 for t in found)


def test_knobs_do_what_they_say():
    for num_calls in (3, 4, 5, 6):
        level = level_of(4, num_calls=num_calls, ambiguity=1.0, impossible=1.0, distractors=5)
        for seed in range(4):
            problem = problem_of(level, seed)
            assert len(problem.calls) == num_calls
            assert problem.ask is not None
            assert any(fact.startswith("refused") for fact in problem.facts)
    assert [len(level_of(3, num_tables=n).tools) for n in (5, 6, 7)] == [14, 18, 20]


@cases(
    "options, words",
    [
        ({"level": 9}, "no level 9"),
        ({"level": True}, "no level True"),
        ({"level": 1, "num_calls": 3}, "level 2 or more"),
        ({"level": 2, "num_calls": 7}, "int 1 to 6"),
        ({"level": 2, "ambiguity": 1.5}, "float 0 to 1"),
        ({"level": 2, "num_calls": 1, "ambiguity": 0.5}, "leaves nothing open"),
        ({"levle": 2}, "levle"),
    ],
)
def test_options_are_never_ignored(options, words):
    with pytest.raises(ConfigError, match=words):
        make("arl_envs.tools:SPEC", **options)


def test_knobs_that_leave_no_request_say_so():
    with pytest.raises(ConfigError, match="raise num_calls"):
        tasks(2, 1, num_calls=2, ambiguity=1.0, impossible=1.0)


def test_tasks_it_cannot_play():
    good = tasks(2, 1)[0]
    strange = [tasks(1, 1)[0], tasks(2, 1, num_calls=3)[0], Task("t", 0)]
    changed = Task("t", good.seed, {**good.data, "request": "Hello."})
    for task in (*strange, changed):
        with pytest.raises(EnvError):
            asyncio.run(ToolsEnv(level=2).reset(options={"task": task}))


def test_instances_share_nothing():
    one, other = (started(tasks(1, 1)[0]) for _ in range(2))
    *before, _ = one.solve() or ()
    untouched = other.database.state()
    for message in before:
        run(one.step(message))
    one.database.run("DELETE FROM orders")
    assert other.database.state() == untouched
    assert gold(other)[-1].reward == 1.0


def test_one_instance_plays_again_and_closes_twice():
    env, many = ToolsEnv(level=3), tasks(3, 3)
    for i in (0, 1, 2, 0):
        asyncio.run(env.reset(options={"task": many[i]}))
        assert gold(env)[-1].reward == 1.0
    for _ in range(2):
        run(env.close())
    with pytest.raises(EnvError, match="call reset first"):
        run(env.step(say("Answer: done")))


EPISODES = """
from tests_kit import gold, started, tasks
for level in (1, 2, 3, 4, 5):
    for task in tasks(level, 5):
        env = started(task)
        print(task, env.tools, env.solve(), env.database.state())
        print(gold(env), env.salt)
"""


@pytest.mark.slow
def test_the_same_task_is_the_same_episode_in_another_process(tmp_path):
    (tmp_path / "tests_kit.py").write_text((Path(__file__).parent / "kit.py").read_text())
    outputs = [
        subprocess.run(
            [sys.executable, "-c", EPISODES],
            cwd=tmp_path,
            env={"PYTHONPATH": ":".join([str(tmp_path), *sys.path]), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 10_000


def test_level_1_says_what_a_tiny_model_was_taught():
    env = started(tasks(1, 1)[0])
    names = [each["function"]["name"] for each in env.tools]
    assert names == ["find_order", "get_order", "cancel_order", "ship_order", "refund_order"]
    messages, _ = asyncio.run(ToolsEnv().reset(seed=1))
    prompt = "Use the tools. At the end say Answer: done, or Answer: and the number."
    assert messages[0]["content"] == prompt
    assert len(json.dumps(env.tools)) < 1000
