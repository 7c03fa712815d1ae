"""Generated problems: the grammar, determinism, and the wall between train and eval."""

import itertools
import json
import re
import subprocess
import sys

import pytest
from arl_envs.math.calculator import evaluate
from arl_envs.math.options import LEVELS
from arl_envs.math.source import MathTasks
from arl_envs.splits import split_of

from agentgym_rl.core import ConfigError, Task
from tests.kit.cases import cases

LEVEL_NUMBERS = sorted(LEVELS)
_NAME, _ITEM = "(?P<name>Tom|Ann|Sam|Mia)", "(?P<item>pens|coins|cards|eggs)"
_FIRST = (
    rf"{_NAME} (has \d\d boxes with \d\d {_ITEM} in each box"
    rf"|buys \d\d bags of \d\d {_ITEM.replace('item', 'item2')}"
    rf"|has \d{{3}} {_ITEM.replace('item', 'item3')} and (finds|buys) \d{{3}} more"
    rf"|has \d{{3}} {_ITEM.replace('item', 'item4')} and (loses|sells) \d{{3}})\."
)
_ASK = r" How many (pens|coins|cards|eggs) are there\?"
_SECOND = rf" Then (?P=name) ((gets|wins) \d\d more|(gives away|drops) \d\d)\.{_ASK}"
_FRIEND = r" A friend has \d times as many\. How many does the friend have\?"
SHORT_STORY = re.compile(f"{_FIRST}({_ASK}|{_SECOND}|{_FRIEND})")


def take(source: MathTasks, count: int) -> list[Task]:
    return [source[i] for i in range(count)]


def test_level_1_speaks_its_grammar() -> None:
    for task in take(MathTasks("train"), 2000):
        assert SHORT_STORY.fullmatch(task.data["question"]), task.data["question"]


def test_level_1_mixes_steps_and_operations() -> None:
    plans = [LEVELS[1].problem(seed).plan for seed in range(3000)]
    assert 0.45 < sum(len(plan) == 2 for plan in plans) / len(plans) < 0.55
    firsts = [re.sub(r"\d", "", plan[0]) for plan in plans]
    assert all(0.28 < firsts.count(operator) / len(firsts) < 0.39 for operator in "+-*")


@cases("level", LEVEL_NUMBERS)
def test_the_plan_leads_to_the_answer(level: int) -> None:
    for seed in range(1000):
        problem = LEVELS[level].problem(seed)
        assert evaluate(problem.plan[-1]) == evaluate(problem.answer)


@cases("level", LEVEL_NUMBERS)
def test_each_step_uses_the_result_before_it(level: int) -> None:
    for seed in range(500):
        plan = LEVELS[level].problem(seed).plan
        for before, after in itertools.pairwise(plan):
            assert after.startswith(LEVELS[level].calculator.run(before))


def test_level_3_has_three_to_six_steps() -> None:
    lengths = {len(LEVELS[3].problem(seed).plan) for seed in range(500)}
    assert lengths == {3, 4, 5, 6}


def test_level_4_has_both_kinds_of_answer() -> None:
    kinds = [LEVELS[4].problem(seed).kind for seed in range(500)]
    assert set(kinds) == {"fraction", "decimal"}
    assert 0.4 < kinds.count("fraction") / len(kinds) < 0.6


def test_another_process_makes_the_same_tasks() -> None:
    code = (
        "import json; from arl_envs.math.source import MathTasks\n"
        f"sources = [MathTasks('eval', seed=7, level=level) for level in {LEVEL_NUMBERS}]\n"
        "first = [[tasks[i] for i in range(50)] for tasks in sources]\n"
        "print(json.dumps([[[t.id, t.seed, dict(t.data)] for t in level] for level in first]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    there = dict(zip(LEVEL_NUMBERS, json.loads(out.stdout), strict=True))
    for level in LEVEL_NUMBERS:
        here = take(MathTasks("eval", seed=7, level=level), 50)
        assert there[level] == [[t.id, t.seed, dict(t.data)] for t in here], level


def test_seeds_and_indices_differ() -> None:
    tasks = [*take(MathTasks("train", seed=1), 200), *take(MathTasks("train", seed=2), 200)]
    assert len({task.data["question"] for task in tasks}) > 390
    assert len({task.id for task in tasks}) == 400


@pytest.mark.slow
@cases("level, count", [(1, 12_000), (2, 2000), (3, 3000), (4, 2000)])
def test_train_and_eval_share_no_question(level: int, count: int) -> None:
    def questions(split, seed: int) -> set[str]:
        source = MathTasks(split, seed=seed, level=level)
        return {task.data["question"] for task in take(source, count // 2)}

    train, held_out = (questions(split, 0) | questions(split, 1) for split in ("train", "eval"))
    assert not train & held_out
    assert min(len(train), len(held_out)) > 0.98 * count


@cases("split", ["train", "eval"])
def test_the_text_alone_decides_the_split(split) -> None:
    assert all(
        split_of(t.data["question"]) == t.split == split for t in take(MathTasks(split), 999)
    )


def test_bad_requests() -> None:
    for level in (0, 5, "1", 1.0, True, None):
        with pytest.raises(ConfigError, match="no level"):
            MathTasks("train", level=level)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="no split"):
        MathTasks("test")  # pyright: ignore[reportArgumentType]
    with pytest.raises(IndexError):
        MathTasks("train")[-1]
