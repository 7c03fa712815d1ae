"""The reward environment: a prompt, a reward function, nothing else."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentgym_rl import EnvSpec, Step, make
from agentgym_rl.core import ConfigError, EnvError, InfraError
from agentgym_rl.gym import register, spec
from agentgym_rl.gym.wrappers import StepTimeout
from tests.kit.cases import cases

from . import functions

HERE = f"{__name__.rpartition('.')[0]}.functions"
ENV = "arl_envs.reward:SPEC"


@pytest.fixture
def data(tmp_path: Path) -> str:
    return write(tmp_path / "rows.jsonl", *({"prompt": f"Say {i}.", "least": i} for i in range(40)))


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def source(split: str = "train", *, function: str = "length", **options: Any) -> Any:
    options = {"function": f"{HERE}:{function}"} | options
    return spec(ENV).task_source(split, seed=0, **options)  # type: ignore[arg-type]


def scored(said: str | dict, *, function: str = "length", **options: Any) -> Step:
    """One episode of the first training task."""

    async def play() -> Step:
        env = make(ENV, function=f"{HERE}:{function}", **options)
        try:
            task = source(function=function, **options)[0]
            await env.reset(options={"task": task})
            message = said if isinstance(said, dict) else {"content": said}
            return await env.step({"role": "assistant", **message})
        finally:
            await env.close()

    return asyncio.run(play())


# ---------------------------------------------------------------- scoring
@pytest.mark.parametrize("function", ["length", "slow_length"])
def test_the_reward_is_what_the_function_says(data, function):
    least = source(data=data)[0].data["row"]["least"]
    step = scored("hello", function=function, data=data)
    assert (step.reward, step.terminated, step.observation) == (5 - least, True, [])


def test_parts_of_a_reward_are_told(data):
    step = scored("x", function="parts", data=data)
    assert step.reward == 2.5
    assert step.info["reward_components"] == {"style": 1.0, "right": 1.0}
    assert source(data=data)[0].data["row"]["least"] != 99


def test_a_thread_keeps_it_off_the_loop(data):
    assert scored("x", function="thread_name", data=data).reward == 0.0
    assert scored("x", function="thread_name", data=data, executor="thread").reward == 1.0


@cases(
    "function, said",
    [
        ("broken", "broken raised KeyError: 'nothing'"),
        ("no_number", "returned 'good', expected a number"),
        ("nothing_applies", "every part is None, so none applies to this row"),
        ("no_reward", "needs the key 'reward'"),
        ("infinite", "expected finite numbers"),
    ],
)
def test_a_function_that_fails_is_the_environment_s_failure(data, function, said):
    with pytest.raises(EnvError, match=said):
        scored("x", function=function, data=data)


def test_a_part_that_does_not_apply_is_left_out(data):
    step = scored("x", function="partly", data=data)
    assert (step.reward, step.info["reward_components"]) == (1.5, {"style": 1.0, "short": 0.5})
    step = scored("x", function="apart", data=data)
    assert (step.reward, step.info.get("metrics")) == (2.0, None)


def test_a_function_that_never_returns_is_the_environment_s_failure(data):
    with pytest.raises(StepTimeout, match=r"0\.05 s"):
        scored("x", function="hanging", data=data, timeout_s=0.05)


@pytest.mark.parametrize(
    ("function", "said"),
    [("broken", "KeyError"), ("exhausted", "Runtime"), ("leaving", "SystemExit: 3")],
)
def test_what_a_thread_raises_is_told(data, function, said):
    with pytest.raises(EnvError, match=said):
        scored("x", function=function, data=data, executor="thread")


def test_a_function_cannot_end_the_process(data):
    with pytest.raises(EnvError, match="SystemExit: 3"):
        scored("x", function="leaving", data=data)


def test_a_thread_that_hangs_is_left_behind(data):
    async def play() -> float:
        env = make(ENV, function=f"{HERE}:hanging_on_request", **options)
        await env.reset(seed=1)
        with pytest.raises(StepTimeout):
            await env.step({"role": "assistant", "content": "hang"})
        await env.reset(seed=1)
        step = await env.step({"role": "assistant", "content": "more"})
        await env.close()
        return step.reward

    options = {"data": data, "executor": "thread", "timeout_s": 0.5}
    assert asyncio.run(play()) == 1.0
    functions.HELD.set()


@pytest.mark.slow
def test_a_thread_that_hangs_does_not_hold_up_the_end_of_the_process():
    program = (
        "import asyncio, time\n"
        "from arl_envs.reward.scoring import in_a_thread\n"
        "async def main():\n"
        "    async with asyncio.timeout(0.1):\n"
        "        await in_a_thread(time.sleep, 600)\n"
        "try:\n    asyncio.run(main())\nexcept TimeoutError:\n    print('over')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert ended.stdout == b"over\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [("dying", InfraError, "crash"), ("broken", EnvError, "error: .*nothing")],
)
def test_the_pool_survives_any_function(data, function, kind, said):
    with pytest.raises(kind, match=f"(?s){function} in the verifier pool: {said}"):
        scored("x", function=function, data=data, executor="pool", timeout_s=5)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["looping", "hungry"])
def test_a_reply_that_hangs_the_pool_is_worth_nothing_and_counted(data, function):
    step = scored("x", function=function, data=data, executor="pool", timeout_s=0.5)
    assert (step.reward, step.terminated) == (0.0, True)
    assert step.info["metrics"] == {"verifier_timeouts": 1.0}


@pytest.mark.slow
def test_the_pool_scores_as_this_process_does(data):
    there, here = scored("abc", data=data, executor="pool"), scored("abc", data=data)
    assert there[:4] == here[:4]
    assert there.info == here.info | {"metrics": {"verifier_timeouts": 0.0}}


# ---------------------------------------------------------------- prompts and rows
def first_messages(**options: Any) -> list[Any]:
    async def reset() -> list[Any]:
        task = source(**options)[0]
        messages, info = await make(ENV, function=f"{HERE}:length", **options).reset(
            options={"task": task}
        )
        assert info["task_id"] == task.id
        return messages

    return asyncio.run(reset())


def test_a_prompt_is_text_or_messages(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    path = write(tmp_path / "rows.jsonl", {"ask": "Hi"})
    text = first_messages(
        data=path, prompt_field="ask", system_prompt="Be brief.", rows={"eval_fraction": 0}
    )
    assert text == chat
    path = write(tmp_path / "chat.jsonl", {"prompt": chat})
    assert first_messages(data=path, rows={"eval_fraction": 0}) == chat


def test_text_parts_are_played_like_the_text_they_are(tmp_path):
    def parts(*texts):
        return [{"type": "text", "text": text} for text in texts]

    wrong = []
    for prompt, plain in (
        ([{"role": "user", "content": parts("Hi 0")}], [{"role": "user", "content": "Hi 0"}]),
        (
            [{"role": "user", "content": parts("Hi", " ", "0")}],
            [{"role": "user", "content": "Hi 0"}],
        ),
        (parts("Hi ", "0"), [{"role": "user", "content": "Hi 0"}]),
        (
            [
                {"role": "system", "content": parts("Be ", "brief.")},
                {"role": "user", "content": "x"},
            ],
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}],
        ),
        (
            [{"role": "system", "content": []}, {"role": "user", "content": parts("x")}],
            [{"role": "system", "content": ""}, {"role": "user", "content": "x"}],
        ),
    ):
        there = []
        for name, asked in (("parts", prompt), ("plain", plain)):
            path = write(tmp_path / f"{name}.jsonl", {"messages": asked})
            options = {"data": path, "prompt_field": "messages", "rows": {"eval_fraction": 0}}
            there.append((first_messages(**options), source(**options).index.digest(0)))
        if there[0][0] != plain or there[1][0] != plain:
            wrong.append((prompt, there))
    assert wrong == []


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@cases(
    "row, said",
    [
        (
            {"prompt": [{"role": "user", "content": [IMAGE]}]},
            "role user: .* part .*'image_url'.*, exp",
        ),
        ({"prompt": [{"role": "user", "content": ["Hi"]}]}, "content: got the part 'Hi', expected"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text"}]}]},
            "got the part {'type': 'text'}, expec",
        ),
        ({"prompt": [IMAGE]}, "part {'type': 'image_url'.*, expected text"),
        ({"prompt": [{"role": "user", "content": []}]}, "prompt: nothing is said in it"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": " "}]}]}, "nothing is"),
        ({"prompt": None}, "prompt: got nothing, expected text .*; the row has prompt"),
        ({"prompt": []}, "expected text or a list of messages"),
        ({"prompt": [{"role": "robot", "content": "x"}]}, "a message: got"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "last message is the assistant's"),
        ({"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]}, "own"),
        ({"prompt": "[INST] Hi [/INST]"}, "prompt: a prompt that is rendered already"),
        (
            {"prompt": [{"role": "user", "content": "<|user|>\nHi<|assistant|>\n"}]},
            "prompt: a prompt that is rendered already",
        ),
    ],
)
def test_a_bad_row_is_told(tmp_path, row, said):
    path = write(tmp_path / "rows.jsonl", row)
    with pytest.raises(ConfigError, match=f"all 1 rows are refused: .*line 1: .*{said}"):
        source(data=path, system_prompt="Be brief.")


def test_held_out_prompts_are_never_trained_on(data, tmp_path):
    again = [{"prompt": f"Say {i}.", "least": 50 + i} for i in range(40)]
    path = write(
        tmp_path / "twice.jsonl", *map(json.loads, Path(data).read_text().splitlines()), *again
    )
    asked = {
        split: {task.data["row"]["prompt"] for task in source(split, data=path)}
        for split in ("train", "eval")
    }
    assert len(asked["train"]) + len(asked["eval"]) == 40
    assert asked["train"].isdisjoint(asked["eval"])
    assert len(source("train", data=path)) == 2 * len(asked["train"])  # rows that differ stay


def test_eval_data_is_held_out_whole(data, tmp_path):
    held = write(tmp_path / "eval.jsonl", {"prompt": "Say 1.", "least": 0}, {"prompt": "New."})
    assert len(source("eval", data=data, eval_data=held)) == 2
    assert len(source("train", data=data, eval_data=held)) == 39


def test_forms_of_a_prompt_are_in_one_split(tmp_path):
    plain = [f"Question {i}:\nWhat is {i} plus {i}?" for i in range(60)]
    for twin in (str.upper, str.rstrip, lambda text: f"{text}\n", lambda text: f" {text}",
                 lambda text: [{"role": "user", "content": f"{text}\n"}]):  # fmt: skip
        path = write(
            tmp_path / "rows.jsonl", *({"prompt": f(t)} for t in plain for f in (str, twin))
        )
        train, held = (
            {" ".join(task.data["messages"][0]["content"].lower().split()) for task in found}
            for found in (source("train", data=path), source("eval", data=path))
        )
        assert held
        assert train.isdisjoint(held)


# ---------------------------------------------------------------- the parameters of functions
@cases(
    "name, said",
    [
        ("of_a_column", "`answer` would get the whole row, a dictionary: write def function"),
        ("of_two_columns", "`key` is a column of the rows, and the parameter would get the whole"),
        ("swapped", "`row` would get the text of one reply"),
        ("typed", "`r: str` would get the whole row"),
        ("batched", "`completions` would get the text of one reply"),
        ("one_argument", "too many positional arguments; write def function"),
        ("of_three", "missing a required argument"),
        ("of_labels", "`queries` would get the text of one reply"),
        ("with_a_default", "`answer` is a column of the rows, and .* always have its default"),
        ("with_columns", r"`\*\*columns` would always be empty"),
        ("thinks_by_name", "would always be empty: thoughts are the third parameter"),
        ("Unmade", r"Unmade is a class, .* or an object with __call__ \(in the module: unmade = "),
    ],
)
def test_a_function_of_another_contract_is_refused(tmp_path, name, said):
    path = write(tmp_path / "rows.jsonl", {"prompt": "Say hello.", "answer": "hello", "key": 1})
    with pytest.raises(ConfigError, match=said):
        source(function=name, data=path)


def test_parameters_whose_names_do_not_say_what_they_get_are_said_once(tmp_path, caplog):
    path = write(tmp_path / "rows.jsonl", {"prompt": "Say hello.", "answer": "hello"})
    for _ in range(2):
        source(function="by_other_names", data=path)
        source(function="length", data=path)
    [said] = [record.getMessage() for record in caplog.records if "gets" in record.getMessage()]
    assert "`said` gets the text of one reply, `wanted` gets the whole row, a dictionary;" in said


def test_an_object_with_an_async_call_works_inline_alone(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"prompt": "Say hello."})
    source(function="unmade", data=path)
    with pytest.raises(ConfigError, match="unmade is async"):
        source(function="unmade", data=path, executor="thread")


def test_fields_that_could_be_the_prompt_are_said_once(tmp_path, caplog):
    row = {"prompt": "Hi", "system": "Be brief.", "tools": [{}], "id": 1, "max_turns": 3}
    for _ in range(2):
        source(data=write(tmp_path / "rows.jsonl", row), rows={"eval_fraction": 0})
    assert caplog.text.count("rows have system, tools, and the prompt is the field prompt") == 1


@cases(
    "executor, field",
    [("inline", "reasoning_content"), ("thread", "reasoning"), ("pool", "thinking")],
)
def test_a_third_parameter_gets_the_thoughts(tmp_path, caplog, executor, field):
    options = {"function": "thinks", "data": write(tmp_path / "rows.jsonl", {"prompt": "2+2?"}),
               "rows": {"eval_fraction": 0}, "executor": executor}  # fmt: skip
    assert scored({"content": "4", field: "Two and two."}, **options).reward == 12.0
    assert scored("4", **options).reward == 0.0
    assert not caplog.records


def test_thoughts_that_a_function_is_not_given_are_said_once(data, caplog):
    for _ in range(2):
        scored({"content": "4", "reasoning": "Hm."}, function="never_thinks", data=data)
    assert caplog.text.count("a third parameter `reasoning` gets the thoughts") == 1


# ---------------------------------------------------------------- processors and weights
def test_a_processor_makes_of_a_row_what_it_likes(tmp_path):
    rows = [{"prompt": "A", "id": "a"}, {"prompt": "B", "skip": True}, {"prompt": "C"}]
    path = write(tmp_path / "rows.jsonl", *rows)
    tasks = source(data=path, processor=f"{HERE}:halves", rows={"eval_fraction": 0})
    assert sorted(t.data["row"]["prompt"] for t in tasks) == ["A (1)", "A (2)", "C (1)", "C (2)"]
    assert len({task.id for task in tasks}) == 4
    assert (tasks.index.num_rows, tasks.index.num_left_out) == (3, 1)


def test_a_processor_that_fails_names_file_and_row(data):
    for processor in ("broken", "no_row"):
        with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1|expected a row"):
            source(data=data, processor=f"{HERE}:{processor}")


def test_rows_have_weights(tmp_path):
    rows = [{"prompt": "A", "weight": 0}, {"prompt": "B", "weight": 2.5}, {"prompt": "C"}]
    data = write(tmp_path / "rows.jsonl", *rows)
    options = {"data": data, "rows": {"eval_fraction": 0, "weight_field": "weight"}}
    weights = {task.data["row"]["prompt"]: task.weight for task in source(**options)}
    assert weights == {"A": 0.0, "B": 2.5, "C": 1.0}
    processed = source(**options, processor=f"{HERE}:heavy")
    assert {task.weight for task in processed} == {3.0}
    data = write(tmp_path / "rows.jsonl", {"prompt": "x", "weight": "2 kg"})
    with pytest.raises(ConfigError, match=r"weight: got '2 kg', expected a number .*weight_field"):
        source(**options | {"data": data})
    (task,) = source(data=data, rows={"eval_fraction": 0})
    assert task.weight == 1.0


# ---------------------------------------------------------------- options
@cases(
    "options, said",
    [
        ({"data": None}, "give --data FILE"),
        ({"data": "nowhere.jsonl"}, "is no file"),
        ({"executor": "gpu"}, "allowed: inline, thread, pool"),
        ({"timeout_s": 0}, "expected seconds above 0"),
        ({"rows": {"path": "x.jsonl"}}, "has path already"),
        ({"rows": {"pathh": "x.jsonl"}}, "unknown pathh; allowed: path"),
        ({"processor": f"{HERE}:NUMBER"}, "no function"),
        ({"colour": 1}, "colour"),
    ],
)
def test_options_that_cannot_work(data, options, said):
    with pytest.raises(ConfigError, match=said):
        source(**({"data": data} | options))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("missing", "cannot import"),
        ("NUMBER", "expected a function"),
        ("one_argument", r"called as function\(completion, row\)"),
    ],
)
def test_functions_that_cannot_work(data, function, said):
    with pytest.raises(ConfigError, match=said):
        make(ENV, function=f"{HERE}:{function}", data=data)


def test_an_async_function_stays_on_the_loop(data):
    with pytest.raises(ConfigError, match="executor 'inline' alone"):
        make(ENV, function=f"{HERE}:slow_length", data=data, executor="pool")


def test_the_spec_says_everything(data):
    made = make(ENV, function=f"{HERE}:length", data=data).spec
    assert isinstance(made, EnvSpec)
    again = make(EnvSpec.from_json(made.to_json()))
    messages, _ = asyncio.run(again.reset(seed=3))
    assert messages[0]["content"].startswith("Say ")


def test_the_id_names_the_function(data):
    shipped = spec(ENV)
    register("reward_here-v0", shipped.entry_point, argument=shipped.argument, force=True)
    made = make(f"reward_here:{HERE}:length", data=data).spec
    assert isinstance(made, EnvSpec)
    assert made.kwargs == {"function": f"{HERE}:length", "data": data}


@pytest.mark.parametrize("env", ["reward", "math"])
def test_a_reset_without_a_task_says_where_every_row_is_held_out(env, tmp_path):
    row = {"prompt": "Say 1.", "question": "What is 1 + 1?", "answer": "2", "least": 0}
    options: dict[str, Any] = {"data": write(tmp_path / "rows.jsonl", row)}
    options["rows"] = {"eval_fraction": 0.9999}
    if env == "reward":
        options["function"] = f"{HERE}:length"

    async def play() -> None:
        made = make(env, **options)
        try:
            await made.reset(seed=3)
        finally:
            await made.close()

    with pytest.raises(EnvError, match=r"there are 0 tasks: reset needs options.*eval_data"):
        asyncio.run(play())


def test_a_row_with_a_blank_answer_is_refused_and_named(tmp_path, caplog):
    path = tmp_path / "rows.csv"
    path.write_text("question,answer\n2+2?,\n1+1?,2\n3+3?,6\n4+4?, \n")
    with caplog.at_level("INFO"):
        tasks = source(data=str(path), rows={"eval_fraction": 0})
    assert len(tasks) == 2
    assert "rows read as question/answer: prompt = question, answer = answer" in caplog.text
    assert "answer: got" in caplog.text
    assert "expected the answer" in caplog.text


def test_rows_with_a_blank_answer_are_kept_on_demand(tmp_path, caplog):
    path = write(tmp_path / "rows.jsonl", *({"prompt": f"{n}?", "answer": ""} for n in range(3)))
    rows = {"eval_fraction": 0}
    with pytest.raises(ConfigError, match="blank_answers=true keeps such rows"):
        source(data=path, rows=rows)
    assert len(source(data=path, rows=rows, blank_answers=True)) == 3
    with pytest.raises(ConfigError, match=r"blank_answers: got 'yes'; allowed: true, false"):
        source(data=path, rows=rows, blank_answers="yes")


def test_a_blank_column_that_is_no_answer_is_read(tmp_path):
    path = write(tmp_path / "rows.jsonl", {"question": "Why?", "topic": ""})
    assert len(source(data=path, rows={"eval_fraction": 0})) == 1
