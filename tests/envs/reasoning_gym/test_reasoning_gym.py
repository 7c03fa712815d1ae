"""reasoning-gym's questions, scored in the verifier pool: what pays, and what an answer can do."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from arl_envs.reasoning_gym import SPEC
from arl_envs.reasoning_gym.extract import MAX_CHARS, final_answer
from arl_envs.reasoning_gym.inside import holds
from arl_envs.reasoning_gym.screen import EVALUATED, may_be_scored
from arl_verifier.pool import ProcessPool

from agentgym_rl.core import ConfigError, EnvError, InfraError, Task, install_command
from agentgym_rl.gym import Env, Step
from tests.kit.cases import cases

pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")

from arl_envs.reasoning_gym import datasets

NAMES = sorted(datasets.names())
NUM_PARTS = 5
"""Datasets are many, and some slow: workers of pytest share them."""
WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
GENERIC = ["maybe", "-7.25", "no one", "[]", "None", "0 1 2 3 4 5 6 7 8 9"]
ATTACKS = [
    "__import__('os').system('touch {file}')",
    "open('{file}', 'w')",
    "[open('{file}', 'w')]",
    "eval(chr(111)+chr(112)+chr(101)+chr(110))('{file}', 'w')",
    "(lambda: open('{file}', 'w'))()",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "exec(\"open('{file}', 'w')\")",
]


class World:
    """An event loop and a pool on it."""

    def __init__(self, runner: asyncio.Runner, pool: ProcessPool) -> None:
        self._runner = runner
        self.pool = pool

    def asked(self, dataset: str, *, seed: int = 5, pool: Any = None, **options: Any) -> Env:
        env = SPEC.make(dataset=dataset, **options)
        reset = env.reset(seed=seed, options={"verifier": pool or self.pool})
        self.messages, self.info = self._runner.run(reset)
        return env

    def answer(self, env: Env, content: str) -> Step:
        return self._runner.run(env.step({"role": "assistant", "content": content}))

    def run(self, work: Any) -> Any:
        return self._runner.run(work)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        pool = runner.run(ProcessPool(memory_mb=1024, load_timeout_s=120).__aenter__())
        yield World(runner, pool)
        runner.run(pool.close())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_the_right_answer_pays_and_plain_wrong_ones_do_not(part, world, subtests):
    for dataset in NAMES[part::NUM_PARTS]:
        with subtests.test(dataset):
            pays_the_right_answer_alone(dataset, world)


def pays_the_right_answer_alone(dataset, world):
    env = world.asked(dataset)
    gold = env.solve()
    assert (gold is None) == (dataset in WITHOUT_ANSWER)
    assert gold is None or world.answer(env, gold[0]["content"]).reward == 1.0
    for wrong in (*map("<answer>{}</answer>".format, GENERIC), "", "The answer is 4."):
        step = world.answer(world.asked(dataset), wrong)
        assert (step.reward, step.terminated) == (0.0, True)
        assert step.info["verifier"] in ("wrong", "unparseable")


@pytest.mark.slow
def test_another_right_answer_pays(world):
    world.answer(world.asked("countdown"), "\\boxed{1}")
    env = world.asked("countdown")
    right = env.solve()[0]["content"].removesuffix("</answer>") + " + 0*1</answer>"
    assert world.answer(env, right).info["verifier"] == "wrong"  # other numbers than the given
    env = world.asked("countdown")
    inside = env.solve()[0]["content"][len("<answer>") : -len("</answer>")]
    assert world.answer(env, f"<answer>({inside})</answer>").reward == 1.0


def test_partial_credit_is_an_option(world):
    near = "<answer>-11, I think</answer>"
    assert world.answer(world.asked("chain_sum"), near).reward == 0.0
    step = world.answer(world.asked("chain_sum", reward="raw"), near)
    assert 0.0 < step.reward < 0.99
    assert step.info["reward_components"] == {"score": step.reward}


@cases(
    "answer, near",
    [("0.65625", 1), ("0.6563", 1), ("21/32", 1), ("0", 0), ("0.6", 0), ("1e9/1", 0), ("x", 0)],
)
def test_a_coin_flip_is_near_enough_or_not(answer, near):
    assert holds("coin_flip", answer, {"answer": "0.65625"}) == bool(near)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["list_functions", "knight_swap", "ransom_note", "word_ladder"])
def test_a_seed_is_the_same_question_in_any_process(dataset):
    async def asked() -> list:
        env = SPEC.make(dataset=dataset)
        messages, _ = await env.reset(seed=11)
        await env.close()
        return messages

    assert asyncio.run(asked()) == asyncio.run(asked())


def test_puzzle24_takes_no_other_numbers(world):
    step = world.answer(world.asked("puzzle24"), "<answer>6*4 + 1 - 1</answer>")
    assert step.reward == 0.0


@pytest.mark.slow
def test_an_exact_answer_needs_no_pool(world):
    async def closed_before_the_answer() -> Step:
        async with ProcessPool(num_workers=1) as pool:
            env = SPEC.make(dataset="chain_sum")
            await env.reset(seed=5, options={"verifier": pool})
        return await env.step(env.solve()[0])

    assert world.run(closed_before_the_answer()).reward == 1.0


@pytest.mark.slow
@cases("dataset", sorted(EVALUATED))
def test_answers_run_no_code(dataset, world, tmp_path):
    file = tmp_path / "touched"
    for attack in ATTACKS:
        step = world.answer(world.asked(dataset), f"<answer>{attack.format(file=file)}</answer>")
        assert (step.reward, step.info["verifier"]) == (0.0, "unparseable")
    assert not file.exists()


@pytest.mark.slow
@cases("dataset", sorted(EVALUATED))
def test_code_that_runs_writes_no_files(dataset, world, tmp_path):
    if "writes" not in world.pool.isolation:
        pytest.skip("this machine cannot lock a process in")
    file = tmp_path / "touched"
    seed, question, _ = world.run(
        world.pool.call("arl_envs.reasoning_gym.inside:entry", dataset, {}, 1, "train")
    ).value
    for attack in ATTACKS:  # past the screen
        args = (dataset, {}, seed, question, attack.format(file=file))
        world.run(world.pool.call("arl_envs.reasoning_gym.inside:score", *args, fresh=True))
    assert not file.exists()


@pytest.mark.slow
@cases("dataset", sorted(EVALUATED))
def test_right_answers_pass_the_screen(dataset, world):
    for seed in range(5):
        gold = final_answer(world.asked(dataset, seed=seed).solve()[0]["content"])
        assert may_be_scored(dataset, gold) or "Integral" in gold


@cases(
    "dataset, answer",
    [
        ("countdown", "9**9"),
        ("countdown", "9* *9"),
        ("puzzle24", "48//2"),
        ("simple_integration", "x.diff"),
        ("simple_integration", "S(x).args"),
        ("simple_integration", "lambda"),
        ("simple_integration", "eval(x)"),
        ("polynomial_multiplication", "x_y"),
        ("n_queens", "print()"),
        ("n_queens", "[1]*9"),
        ("n_queens", "a" * 5000),
    ],
)
def test_the_screen_stops(dataset, answer):
    assert not may_be_scored(dataset, answer)


@pytest.mark.slow
def test_what_hangs_is_paid_nothing_and_counted(world):
    env = world.asked("simple_integration", timeout_s=0.5)
    step = world.answer(env, "<answer>9**9**9**9</answer>")
    assert (step.reward, step.info["verifier"]) == (0.0, "timeout")
    assert step.info["metrics"] == {"verifier_timeouts": 1.0}
    assert "2 attempts" in step.info["verifier_detail"]


class Crashing(ProcessPool):
    """Its scorers end their process."""

    async def call(self, target: str, *args: Any, **options: Any) -> Any:
        if target.endswith(":score"):
            return await super().call("os:abort")
        return await super().call(target, *args, **options)


@pytest.mark.slow
def test_a_crash_is_nobodys_reward(world):
    async def crashed() -> None:
        async with Crashing(num_workers=1) as pool:
            env = SPEC.make(dataset="chain_sum")
            await env.reset(seed=5, options={"verifier": pool})
            await env.step({"role": "assistant", "content": "<answer>3</answer>"})

    with pytest.raises(InfraError, match="chain_sum, scoring: crash"):
        world.run(crashed())


def test_a_task_is_a_question(world):
    source = SPEC.task_source("train", seed=3, dataset="gcd")
    env = SPEC.make(dataset="gcd")
    options = [{"task": source[i], "verifier": world.pool} for i in (0, 1, 0)]
    first = [world.run(env.reset(options=each)) for each in options]
    assert first[0] == first[2] != first[1]
    assert first[0][1] == {"task_id": "gcd-train-3-0"}


@pytest.mark.slow
def test_no_question_is_in_both_splits(world):
    async def questions(split: Any) -> set[str]:
        env = SPEC.make(dataset="coin_flip")
        source = SPEC.task_source(split, seed=1, dataset="coin_flip")
        options = [{"task": source[i], "verifier": world.pool} for i in range(60)]
        return {(await env.reset(options=each))[0][-1]["content"] for each in options}

    train, held_out = (world.run(questions(split)) for split in ("train", "eval"))
    assert train
    assert held_out
    assert not train & held_out


def test_options_are_the_datasets(world):
    world.asked("chain_sum", min_terms=2, max_terms=2, config={"min_digits": 1, "max_digits": 1})
    terms = world.messages[-1]["content"].rpartition(":")[2].split("=")[0]
    assert len(terms.split()) == 3


def test_tool_calls_are_answered(world):
    env = world.asked("chain_sum")
    calls = [{"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}}]
    action = {"role": "assistant", "content": "<answer>-11</answer>", "tool_calls": calls}
    step = world.run(env.step(action))
    assert [m["tool_call_id"] for m in step.observation] == ["a"]
    assert step.info["tool_errors"]


@pytest.mark.parametrize("text", ["\x00\ud800" * 1000, "<answer>\ud800\x00</answer>", "x" * 10**6])
def test_hostile_replies_are_answered(text, world):
    assert world.answer(world.asked("spell_backward"), text).reward == 0.0


@cases(
    "text, answer",
    [
        ("<answer>4</answer>", "4"),
        ("<answer>4</answer> no: <answer> 5\n</answer>", "5"),
        ("<answer>4</answer> or \\boxed{5}", "5"),
        ("\\boxed{5} or <answer>4</answer>", "4"),
        ("<answer>a<answer>b</answer>", "b"),
        ("<answer>1 2\n3 4</answer>", "1 2\n3 4"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("<answer>4", None),
        ("4</answer>", None),
        ("<answer> </answer>", None),
        ("\\boxed{4", None),
        ("4", None),
        (f"<answer>{'4' * (MAX_CHARS + 1)}</answer>", None),
    ],
    ids=range(13),
)
def test_the_last_answer_counts(text, answer):
    assert final_answer(text) == answer


@cases(
    "options, problem",
    [
        ({}, "no dataset of reasoning-gym is called ''"),
        ({"dataset": "chain_sun"}, "did you mean chain_sum"),
        ({"dataset": "composite"}, "mixes others"),
        ({"dataset": "chain_sum", "terms": 3}, "it takes .*min_terms"),
        ({"dataset": "chain_sum", "min_terms": 0}, "does not take"),
        ({"dataset": "chain_sum", "size": 1}, "come from the task"),
        ({"dataset": "chain_sum", "reward": "half"}, "allowed: binary, raw"),
    ],
    ids=range(7),
)
def test_what_cannot_be_asked_is_a_config_error(options, problem):
    with pytest.raises(ConfigError, match=problem):
        SPEC.make(**options)
    if "reward" not in options:
        with pytest.raises(ConfigError, match=problem):
            SPEC.task_source("train", **{"seed": 1, **options})


def test_a_task_of_another_dataset_is_refused(world):
    env = SPEC.make(dataset="gcd")
    with pytest.raises(EnvError, match="is of lcm, not gcd"):
        world.run(env.reset(options={"task": Task(id="t", seed=1, data={"dataset": "lcm"})}))


@pytest.mark.slow
def test_alone_it_has_a_pool_of_its_own():
    async def play() -> Step:
        env = SPEC.make(dataset="chain_sum")
        await env.reset(seed=5)
        step = await env.step({"role": "assistant", "content": "\\boxed{3}"})
        await env.close()
        await env.close()
        return step

    assert asyncio.run(play()).info["verifier"] == "wrong"


@pytest.mark.slow
def test_without_the_package_the_error_says_what_to_do():
    code = (
        "import sys; sys.modules['reasoning_gym'] = None\n"
        "from arl_envs.reasoning_gym import SPEC\n"
        "try:\n    SPEC.make(dataset='gcd')\nexcept ValueError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert install_command("reasoning-gym") in done.stdout
