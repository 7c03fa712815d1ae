"""What a curriculum takes: tasks near the wanted pass rate, and the same ones after any kill."""

import asyncio
import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from arl_audit.exactly_once import audit_ledger
from arl_objectives.curriculum import Curriculum, Drawn, PassRate, named, strategy

from agentgym_rl.config import RolloutConfig, load_config
from agentgym_rl.core import ConfigError, Group, SeededTasks, Task
from agentgym_rl.rollout import TaskCursor
from agentgym_rl.storage import Recovered
from agentgym_rl.storage.recovery import NOTHING, Result
from tests.kit.cases import cases
from tests.kit.groups import make_group
from tests.kit.lives import STEPS, B, begin, live


class Mine(Curriculum):
    """Of a user: only the tasks whose key was never played."""

    def key(self, task, /):
        return str(task.seed % 2)

    def chance(self, key, rewards, /):
        return float(key not in rewards)


class Kept:
    """A log that keeps what was drawn."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, str]] = []

    async def add_drawn(self, task_index: int, key: str) -> None:
        self.drawn.append((task_index, key))


def draws_of(curriculum: Curriculum, recovered: Recovered = NOTHING) -> Drawn:
    return Drawn(curriculum, Kept(), seed=0, recovered=recovered)  # pyright: ignore


# ---------------------------------------------------------------- the strategy
RATES = {"new": (None, 1.0), "even": (0.5, 1.0), "solved": (1.0, 0.05), "hopeless": (0.0, 0.05)}


@cases("rate, chance", RATES.values())
def test_tasks_near_the_aim_are_taken_and_solved_and_hopeless_ones_seldom(rate, chance):
    rewards = {} if rate is None else {"k": [rate] * 4}
    assert PassRate("task").chance("k", rewards) == chance


def test_bounds_of_rewards_are_in_order_where_both_are_given():
    for low, high in ((0.5, None), (None, 0.5), (0.0, 1.0)):
        PassRate("task", low=low, high=high)
    for low, high in ((1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ValueError, match="low < high"):
            PassRate("task", low=low, high=high)


def test_the_chance_falls_on_both_sides_of_the_aim():
    chances = [PassRate("task", aim=0.25).chance("k", {"k": [r]}) for r in (0.0, 0.25, 0.6, 1.0)]
    assert chances == pytest.approx([0.889, 1.0, 0.782, 0.05], abs=1e-3)


def test_only_the_last_groups_count_and_rewards_have_a_range():
    found = PassRate("task", window=2, low=-1, high=1).chance("k", {"k": [1, 1, -1, 1]})
    assert found == 1.0


SCALES = {
    "half of 10": ({"k": [5, 4, 6, 5], "hard": [0.5], "easy": [9]}, 0.99),
    "solved of 10": ({"k": [10, 9.9], "hard": [0]}, 0.05),
    "hopeless of 10": ({"k": [0.5, 0, 0.5, 0], "easy": [9]}, 0.11),
    "penalties": ({"k": [0, 0], "hard": [-1, -1]}, 0.05),
    "between penalties": ({"k": [-0.5], "hard": [-1], "easy": [0]}, 1.0),
    "far from 0": ({"k": [50], "easy": [100]}, 0.05),
    "a penalty and passes": ({"k": [-0.1, 1.0], "other": [0]}, 1.0),
    "a bonus": ({"k": [1.5], "hard": [0.0]}, 0.05),
    "all the same": ({"k": [5, 5]}, 1.0),
    "small": ({"k": [0.01], "hard": [0]}, 0.05),
}


@cases("rewards, chance", SCALES.values(), ids=SCALES)
def test_rewards_beyond_0_to_1_have_the_scale_that_was_seen(rewards, chance):
    assert PassRate("task").chance("k", rewards) == pytest.approx(chance, abs=0.02)
    assert PassRate("task", low=0, high=1).chance("new", rewards) == 1.0


def test_the_scale_does_not_depend_on_the_order_in_which_groups_end():
    results = [Result(i, f"t{i % 7}", 10 * random.Random(i).random(), i % 3) for i in range(60)]
    tasks = [Task(f"t{i % 7}", i, {}) for i in range(60, 200)]
    first, second = (
        draws_of(PassRate("task"), replace(NOTHING, results=order))
        for order in (results, random.Random(1).sample(results, len(results)))
    )
    taken = [[d.takes(t.seed, t, version=3) for t in tasks] for d in (first, second)]
    assert taken[0] == taken[1]
    assert 20 < sum(taken[0]) < 140


def test_another_scale_is_named_once(caplog):
    tasks = PassRate("task")
    for _ in range(3):
        tasks.chance("k", {"k": [5], "easy": [9]})
    assert caplog.text.count("sees rewards from 5 to 9, beyond 0 to 1") == 1
    assert "{low = 5, high = 9}" in caplog.text
    PassRate("task", low=0, high=10).chance("k", {"k": [5], "easy": [9]})
    assert caplog.text.count("sees rewards") == 1


def test_a_curriculum_that_passes_over_everything_is_named_once(caplog):
    tasks, fine = PassRate("task"), PassRate("task")
    fine.chance("k", {"k": [0.4]})
    for _ in range(100):
        tasks.chance("k", {"k": [0.004], "other": [0.001]})
        fine.chance("k", {"k": [0.004]})
    assert caplog.text.count("passes over each of the first 64 known tasks") == 1
    assert "rewards from 0.001 to 0.004, and 0 and 1 count as failed and passed" in caplog.text


def test_tasks_are_named_by_their_level_also_inside_a_mix():
    inner = {"env": "math1", "id": "a", "data": {"level": 3}}
    assert named(Task("t", 0, {"level": 2}), "level") == "2"
    assert (named(Task("t", 0, inner), "level"), named(Task("t", 0, inner), "env")) == (
        "3",
        "math1",
    )
    with pytest.raises(ConfigError, match=r"curriculum='level'.*no 'level', but question; use"):
        named(Task("t", 0, {"question": "?"}), "level")


# ---------------------------------------------------------------- configuration
BAD = {
    "unknown": ({"curriculum": "hard"}, "expected task, level, env, a class as module:Class"),
    "options alone": ({"curriculum_options": {"aim": 0.5}}, "without a curriculum"),
}


@cases("settings, message", BAD.values())
def test_a_curriculum_that_would_be_ignored_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config({"rollout": settings})


REFUSED = {
    "option": ("task", {"goal": 1}, "unexpected keyword argument 'goal'"),
    "range": ("level", {"aim": 1.5}, "allowed: 0 < aim < 1"),
    "module": ("nowhere_at_all:Mine", {}, "cannot import"),
    "class": ("collections:Counter", {}, "made a Counter, expected a subclass"),
}


@cases("name, options, message", REFUSED.values())
def test_a_strategy_that_cannot_be_made_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        strategy(RolloutConfig(curriculum=name, curriculum_options=options))


def test_a_strategy_of_the_users_own_replaces_the_built_in_one():
    assert isinstance(strategy(RolloutConfig(curriculum=f"{__name__}:Mine")), Mine)


def test_a_cursor_without_a_log_refuses_a_curriculum():
    with pytest.raises(ConfigError, match=r"rollout\.curriculum='task'"):
        TaskCursor(RolloutConfig(curriculum="task"), SeededTasks("train"), seed=0)


# ---------------------------------------------------------------- what is seen
class Odd(Curriculum):
    """Of a user, with a method that is wrong."""

    def __init__(self, method: str, said) -> None:
        setattr(self, method, said)

    def key(self, task, /):
        return "k"

    def chance(self, key, rewards, /):
        return 1.0


async def later(*_) -> float:
    return 1.0


@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")
@cases(
    "method, said, message",
    [
        ("chance", lambda *_: float("nan"), "returned nan, not a number from 0 to 1"),
        ("chance", lambda *_: 1.5, "returned 1.5, not a number"),
        ("chance", lambda *_: "1", "returned '1', not a number"),
        ("chance", later, "returned <coroutine"),
        ("chance", lambda *_: 1 / 0, "chance raised ZeroDivisionError"),
        ("chance", lambda _, rewards: rewards.clear(), "chance raised AttributeError"),
        ("key", lambda *_: 3, "key of task t returned 3, not a text"),
        ("key", lambda *_: None, "returned None, not a text"),
        ("key", lambda task: task.data["level"], "key raised KeyError"),
    ],
)
def test_a_strategy_that_breaks_its_contract_is_named(method, said, message):
    with pytest.raises(ConfigError, match=rf"test_curriculum:Odd: .*{message}"):
        draws_of(Odd(method, said)).takes(0, Task("t", 0), version=0)


def played(index: int, version: int) -> Group:
    group = make_group(f"g{index}", [version])
    return Group(group.group_id, group.task_id, group.members, index=index)


def test_groups_of_the_present_version_are_not_seen_yet():
    draws, task = draws_of(Mine()), Task("t", 0)
    asyncio.run(draws.record(0, task))
    draws.saw(played(0, version=3))
    assert draws.takes(1, task, version=3)
    assert not draws.takes(1, task, version=4)


def test_what_is_seen_does_not_depend_on_the_order_in_which_groups_end():
    results = [Result(i, "k", 0, i / 8) for i in range(8)]
    random.Random(0).shuffle(results)
    draws = draws_of(Mine(), Recovered(results=results[:5]))
    draws.takes(9, Task("t", 0), version=1)
    draws._fresh += results[5:]
    draws.takes(9, Task("t", 0), version=1)
    assert draws._rewards == {"k": tuple(i / 8 for i in range(8))}


def test_a_task_whose_record_was_cancelled_is_the_next_one():
    class Slow(Kept):
        begun = asyncio.Event()

        async def add_drawn(self, task_index, key):
            self.begun.set()
            await asyncio.sleep(0)
            await super().add_drawn(task_index, key)

    log = Slow()
    draws = Drawn(PassRate("task"), log, seed=0)  # pyright: ignore
    config = RolloutConfig(curriculum="task")
    cursor = TaskCursor(config, SeededTasks("train"), seed=0, draws=draws)

    async def play() -> list[int]:
        first = asyncio.ensure_future(cursor.next())
        await log.begun.wait()
        first.cancel()
        return [(await cursor.next())[0] for _ in range(2)]

    assert asyncio.run(play()) == [0, 1] == [index for index, _ in log.drawn]


def test_a_resumed_cursor_begins_with_what_was_taken_and_not_finished():
    drawn, numbers = {0: "k", 3: "k", 7: "k"}, {}
    draws = draws_of(PassRate("task"), Recovered(drawn=drawn))
    config, tasks = RolloutConfig(curriculum="task"), SeededTasks("train")
    cursor = TaskCursor(config, tasks, seed=0, logged={3}, draws=draws, numbers=numbers)

    async def play() -> list[int]:
        return [(await cursor.next())[0] for _ in range(3)]

    assert asyncio.run(play()) == [0, 7, 8]
    assert numbers == {"rollout/passed_over": 5}


def test_a_curriculum_that_takes_nothing_ends_the_run():
    recovered = Recovered(results=[Result(0, "0", 0, 1.0), Result(1, "1", 0, 1.0)])
    config, numbers = RolloutConfig(curriculum=f"{__name__}:Mine", max_rejected=5), {}
    cursor = TaskCursor(
        config,
        SeededTasks("train"),
        seed=0,
        draws=draws_of(Mine(), recovered),
        version=lambda: 1,
        numbers=numbers,
    )
    with pytest.raises(ConfigError, match=r"passed over 5 tasks in a row \(rollout.max_rejected\)"):
        asyncio.run(cursor.next())
    assert numbers == {"rollout/passed_over": 5}


# ---------------------------------------------------------------- kills
LEVELS = {"curriculum": "level", "curriculum_options": {"floor": 0.2}}


def tasks_of(run) -> list[tuple[int, int]]:
    """(step, index) of every group that was trained."""
    with closing(sqlite3.connect(run / "episodes.db")) as log:
        query = "SELECT step, task_index FROM groups WHERE step IS NOT NULL ORDER BY 1, 2"
        return log.execute(query).fetchall()


def lives(run, seed: int, **settings) -> dict:
    """Kill a run at any moments until it is finished; the report of its ledger."""
    draw = random.Random(seed)
    for _ in range(100):
        live(run, dies_at=draw.randint(1, 14), after=draw.random() < 0.5, **settings)
        if audit_ledger(run)["finished"]:
            live(run, **settings)  # completes metrics.jsonl after a kill at its last line
            report = audit_ledger(run)
            assert report["faults"] == []
            return report
        assert audit_ledger(run)["faults"] == []
    raise AssertionError("it never ends")


@pytest.mark.parametrize("number", range(4))
def test_a_synchronous_run_has_the_same_tasks_however_often_it_is_killed(tmp_path, number):
    settings = LEVELS | {"max_staleness": 0}
    for name in ("killed", "whole"):
        begin(tmp_path / name, **settings)
    live(tmp_path / "whole", **settings)
    report = lives(tmp_path / "killed", number, **settings)
    assert report["incarnations"] > 1
    assert report["passed_over"] > 0
    expected = tasks_of(tmp_path / "whole")
    assert len(expected) == STEPS * B
    assert tasks_of(tmp_path / "killed") == expected


@pytest.mark.parametrize("number", range(4))
def test_an_asynchronous_run_plays_what_it_drew_and_nothing_twice(tmp_path, number):
    begin(tmp_path / "run", **LEVELS)
    report = lives(tmp_path / "run", number, **LEVELS)
    assert report["batches_trained_again"] == report["of_these_bit_for_bit"]
    assert report["passed_over"] > 0


PLANTED = {
    "not drawn": ("DELETE FROM draws WHERE task_index = 1", "that the curriculum passed over: 1"),
    "not played": ("INSERT INTO draws VALUES (?, '0')", "tasks were skipped"),
}


@cases("statement, fault", PLANTED.values())
def test_the_ledger_finds_a_task_that_the_curriculum_did_not_mean(tmp_path, statement, fault):
    run = tmp_path / str(abs(hash(fault)))
    begin(run, **LEVELS)
    live(run, **LEVELS)
    with closing(sqlite3.connect(run / "episodes.db")) as log, log:
        drawn = {index for (index,) in log.execute("SELECT task_index FROM draws")}
        passed = min(set(range(max(drawn))) - drawn)
        assert log.execute(statement, (passed,) if "?" in statement else ()).rowcount == 1
    (found,) = audit_ledger(run)["faults"]
    assert fault in found
