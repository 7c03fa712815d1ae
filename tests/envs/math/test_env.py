"""The math environment: gold play, bad answers, hostile input, limits."""

import asyncio
import json
from typing import Any

import pytest
from arl_envs.math.env import MathEnv
from arl_envs.math.options import LEVELS
from arl_envs.math.oracle import answer_message, call_message, solve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.core import ConfigError, EnvError, Task
from agentgym_rl.gym import Step, registry
from tests.kit.cases import cases

LEVEL_NUMBERS = sorted(LEVELS)


def run(coroutine: Any) -> Any:
    """Drive a coroutine that never waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the math environment never waits")


def started(task: Task | None = None, **options: Any) -> MathEnv:
    env = MathEnv(**options)
    asyncio.run(env.reset(seed=0, options={"task": task} if task else None))
    return env


def call(name: Any = "calculator", arguments: Any = '{"expression": "3*4"}', id: Any = "c1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(*calls: Any, content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def test_first_messages() -> None:
    task = MathEnv.task_source("eval", seed=0)[0]
    messages, info = asyncio.run(MathEnv().reset(options={"task": task}))
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[0]["content"] == "Solve the problem. Put the final answer in \\boxed{}."
    assert messages[1]["content"] == task.data["question"]
    assert info == {"task_id": task.id}


def test_the_system_prompt_is_an_option() -> None:
    for prompt, roles in (("Be brief.", ["system", "user"]), ("", ["user"])):
        messages, _ = asyncio.run(MathEnv(system_prompt=prompt).reset(seed=0))
        assert [message["role"] for message in messages] == roles
        assert messages[0]["content"] == prompt or not prompt
    with pytest.raises(ConfigError, match="system_prompt: got 7, expected text"):
        MathEnv(system_prompt=7)


def test_level_1_tool_is_what_the_bundled_model_knows() -> None:
    text = (
        '{"type": "function", "function": {"name": "calculator", "description": "Do one '
        'arithmetic operation.", "parameters": {"type": "object", "properties": {"expression": '
        '{"type": "string"}}, "required": ["expression"]}}}'
    )
    assert json.dumps(MathEnv().tools) == f"[{text}]"


@cases("level", LEVEL_NUMBERS)
@cases("split", ["train", "eval"])
def test_gold_play_scores_one(level: int, split) -> None:
    env, tasks = MathEnv(level=level), MathEnv.task_source(split, seed=3, level=level)
    for i in range(500):
        asyncio.run(env.reset(options={"task": tasks[i]}))
        *calls, last = [run(env.step(message)) for message in solve(tasks[i])]
        assert all(step[1:4] == (0.0, False, False) for step in calls)
        assert (last.reward, last.terminated, last.info["verifier"]) == (1.0, True, "ok")
        assert last.info["metrics"]["tool_calls"] == len(calls)


BAD_ANSWERS = ["", "0", "yes", "I don't know.", "\\boxed{}", "\\boxed{0}", "\\boxed{yes}"]
BAD_ANSWERS += [f"\\boxed{{{n}}}" for n in (1, -1, 10, 1e9, "inf", "nan", "x", "1/2 + 1/3")]
BAD_ANSWERS += [" ".join(f"\\boxed{{{n}}}" for n in range(1000)) + " \\boxed{?}"]


@cases("level", LEVEL_NUMBERS)
def test_generic_bad_answers_score_zero(level: int) -> None:
    tasks = MathEnv.task_source("eval", seed=4, level=level)
    for i in range(100):
        task = tasks[i]
        question = task.data["question"]
        echoes = [question, f"\\boxed{{{question}}}", f"\\boxed{{{solve_text(task)}}}"]
        for answer in BAD_ANSWERS + echoes:
            if answer != f"\\boxed{{{task.data['answer']}}}":
                step = run(
                    started(task, level=level).step({"role": "assistant", "content": answer})
                )
                assert (step.reward, step.terminated, step.truncated) == (0.0, True, False)


def solve_text(task: Task) -> str:
    """The un-evaluated expression of the last step: right in value, but not worked out."""
    return LEVELS[task.data["level"]].problem(task.seed).plan[-1]


def test_verdicts() -> None:
    task = MathEnv.task_source("eval", seed=0)[0]
    for content, verdict in (
        ("\\boxed{1}", "wrong"),
        ("hello", "unparseable"),
        (None, "unparseable"),
    ):
        step = run(started(task).step({"role": "assistant", "content": content}))
        assert (step.reward, step.info["verifier"]) == (0.0, verdict)


def test_content_may_come_in_parts() -> None:
    task = MathEnv.task_source("eval", seed=0)[0]
    parts = [
        {"type": "text", "text": "\\boxed{"},
        {"type": "text", "text": task.data["answer"] + "}"},
    ]
    assert run(started(task).step({"role": "assistant", "content": parts})).reward == 1.0


def test_one_tool_message_per_call_in_order() -> None:
    step = run(
        started().step(said(call(id="a"), call(arguments='{"expression": "1+1+1"}', id="b")))
    )
    assert step.observation == [
        {"role": "tool", "tool_call_id": "a", "content": "12"},
        {"role": "tool", "tool_call_id": "b", "content": "error: one operation like 3*4"},
    ]
    assert step.info["tool_errors"] == ["error: one operation like 3*4"]
    assert step.info["metrics"] == {"tool_calls": 2, "tool_errors": 1}


MALFORMED = [
    *(call(name) for name in ("", "python", None, 7, "calculator\0")),
    *(call(arguments=a) for a in ("", "{", "[]", "null", "7", None, 7, [], "{}", '{"x": 1}')),
    *(call(arguments={"expression": e}) for e in (None, 7, ["3*4"], {"a": 1})),
    call(arguments='{"expression": "3*4", "precision": 2}'),
    *(call(arguments=a) for a in ("[" * 200_000, "1" * 10_000, "\ud800", "\0" * 100)),
    *(None, 7, "calculator", [], {}, {"function": None}, {"id": 7, "function": []}),
]


@cases("level", LEVEL_NUMBERS)
@cases("malformed", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_calls_are_answered(level: int, malformed: Any) -> None:
    step: Step = run(started(level=level).step(said(malformed)))
    assert [m["content"] for m in step.observation] == ["error: bad call"]
    assert len(step.info["tool_errors"]) == 1
    assert (step.reward, step.terminated, step.truncated) == (0.0, False, False)
    json.dumps(step.observation)


@cases("level", LEVEL_NUMBERS)
@cases("text", ["x" * 10**6, "(" * 10**6, "\0", "\ud800", "", "1" * 10**6])
@pytest.mark.timeout(60)
def test_hostile_expressions_are_answered(level: int, text: str) -> None:
    step = run(started(level=level).step(said(call(arguments={"expression": text}))))
    assert step.observation[0]["content"].startswith("error:")
    assert len(step.observation[0]["content"]) < 100
    assert run(started(level=level).step({"role": "assistant", "content": text})).reward == 0.0


@cases("calls", ["calculator", {"function": 1}, 7, [[]], ({},)])
def test_tool_calls_of_a_wrong_type(calls: Any) -> None:
    step = run(started().step({"role": "assistant", "tool_calls": calls}))
    assert [m["content"] for m in step.observation] == ["error: bad call"]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), _json))
def test_any_message_gets_an_answer(message: dict[str, Any]) -> None:
    step = run(started().step(message))
    assert step.reward == 0.0
    assert isinstance(step.terminated, bool)


def test_an_episode_of_calls_is_truncated() -> None:
    env = registry.make("arl_envs.math:SPEC", max_turns=2)
    asyncio.run(env.reset(seed=1))
    assert run(env.step(said(call())))[1:4] == (0.0, False, False)
    last = run(env.step(said(call())))
    assert last[1:4] == (0.0, False, True)
    assert last.info["stop_reason"] == "max_turns"
    with pytest.raises(EnvError, match="reset"):
        run(env.step(said(call())))


def test_step_needs_an_episode() -> None:
    with pytest.raises(EnvError, match="reset"):
        run(MathEnv().step(answer_message("1")))
    env = started()
    run(env.step(answer_message("1")))
    with pytest.raises(EnvError, match="reset"):
        run(env.step(answer_message("1")))


def test_one_instance_plays_again() -> None:
    tasks, env = MathEnv.task_source("train", seed=0), MathEnv()
    for i in (0, 1, 0):
        asyncio.run(env.reset(options={"task": tasks[i]}))
        assert run(env.step(solve(tasks[i])[-1])).info["metrics"]["tool_calls"] == 0


def test_seeded_reset_is_deterministic_and_never_held_out() -> None:
    first = [asyncio.run(MathEnv().reset(seed=seed))[0][1]["content"] for seed in range(50)]
    again = [asyncio.run(MathEnv().reset(seed=seed))[0][1]["content"] for seed in range(50)]
    assert first == again
    train = {MathEnv.task_source("train", seed=s)[0].data["question"] for s in range(50)}
    assert set(first) == train
    assert asyncio.run(MathEnv().reset()) != asyncio.run(MathEnv().reset())


def test_options_are_never_ignored() -> None:
    with pytest.raises(ConfigError, match="levle"):
        registry.make("arl_envs.math:SPEC", levle=2)
    with pytest.raises(ConfigError, match="no level 9"):
        registry.make("arl_envs.math:SPEC", level=9)
    with pytest.raises(ConfigError, match="max_turns"):
        registry.make("arl_envs.math:SPEC", max_turns=0)
    with pytest.raises(EnvError, match="speed"):
        asyncio.run(MathEnv().reset(options={"speed": 1}))


def test_tasks_it_cannot_play() -> None:
    level_2 = MathEnv.task_source("train", seed=0, level=2)[0]
    good = {"question": "What is 1 + 1?", "answer": "2", "kind": "integer"}
    bad = [Task("t", 0, good | {"answer": "1+1"}), Task("t", 0, good | {"kind": "word"})]
    for task in (level_2, "task", Task("t", 0), Task("t", 0, good | {"answer": None}), *bad):
        with pytest.raises(EnvError):
            asyncio.run(MathEnv().reset(options={"task": task}))


def test_questions_of_your_own() -> None:
    data = {"question": "What is 1 + 1?", "answer": "2", "kind": "integer"}
    env = started(Task("mine", 0, data))
    assert run(env.step(answer_message("2"))).reward == 1.0
    with pytest.raises(EnvError, match="no plan"):
        solve(Task("mine", 0, data | {"level": 1}))


def test_call_message_is_openai_shaped() -> None:
    message = call_message("3*4", call_id="call_0")
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"expression": "3*4"}
    assert run(started().step(message)).observation[0]["content"] == "12"
