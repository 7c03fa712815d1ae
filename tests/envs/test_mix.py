"""A mix of environments: whose tasks come when, and that each plays as it would by itself."""

import asyncio
import itertools
from collections import Counter

import pytest
from arl_envs.mix import SPEC
from arl_envs.mix.order import Order
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl import Env, SyncEnv, Task
from agentgym_rl.core import ConfigError, EnvError, SeededTasks, TaskSource
from agentgym_rl.gym import Step
from agentgym_rl.gym.data import TaskLoader
from tests.kit.cases import cases

HERE = __name__


class Rows(TaskSource):
    def __init__(self, num: int, split: str) -> None:
        self.num, self.split = num, split

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Task:
        return Task(f"row{range(self.num)[index]}", index, {"row": index}, self.split)


class Finite(SyncEnv):
    """So many tasks, without end of the episode; has a tool and a limit of its own."""

    max_turns = 2
    step_timeout_s = 33.0
    tools = ({"type": "function", "function": {"name": "look", "parameters": {}}},)

    def __init__(self, *, num: int = 3) -> None:
        self.num = num

    @classmethod
    def task_source(cls, split, *, seed, num=3):
        return Rows(num, split)

    def reset(self, *, seed=None, options=None):
        assert set(options) == {"task"}
        self.row = options["task"].data["row"]
        return [{"role": "user", "content": f"row {self.row}"}], {"task_id": options["task"].id}

    def step(self, action):
        return Step([], 0.25, False, False, {"task_id": f"row{self.row}"})

    def solve(self):
        return [{"role": "assistant", "content": f"row {self.row}"}]


class Verified(Finite):
    uses_verifier = True


class Contained(Env):
    """Wants sandboxes; `log` tells what became of its instances."""

    needs_sandboxes = True
    reward_range = None
    log: list[str] = []  # noqa: RUF012 - of the class on purpose

    @classmethod
    def task_source(cls, split, *, seed):
        return SeededTasks(split, seed=seed)

    async def reset(self, *, seed=None, options=None):
        self.log.append(f"reset with {options['sandboxes']}")
        return [], {}

    async def step(self, action):
        return Step([], 1.0, True, False, {})

    async def close(self):
        self.log.append("closed")


def member(cls: type, **more) -> dict:
    return {"id": f"{HERE}:{cls.__name__}", "name": cls.__name__.lower(), **more}


BOTH = [member(Finite, weight=2), member(Contained)]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """As `module:Class`, however pytest has imported this file."""
    import sys

    monkeypatch.setitem(sys.modules, HERE, sys.modules[Finite.__module__])


def tasks(split="train", seed=1, **options):
    return SPEC.task_source(split, seed=seed, **options)


# ---------------------------------------------------------------- whose turn it is
WEIGHTS = st.lists(st.integers(1, 9) | st.sampled_from([0.5, 0.25, 1.5]), min_size=1, max_size=5)


@given(WEIGHTS, st.integers(0, 99))
def test_everyone_gets_an_exact_share_evenly_spread(weights, seed):
    order = Order(weights, seed=seed)
    had = Counter()
    for index in range(400):
        member, turn = order.at(index)
        assert turn == had[member]
        assert order.index_of(member, turn) == index
        had[member] += 1
        for each, weight in enumerate(weights):
            assert abs(had[each] - (index + 1) * weight / sum(weights)) <= len(weights)


def test_shares_are_exact_over_a_cycle():
    order = Order([0.7, 0.2, 0.1], seed=5)
    assert Counter(order.at(i)[0] for i in range(1000)) == {0: 700, 1: 200, 2: 100}


def test_weights_that_never_come_out_even_are_refused():
    with pytest.raises(ConfigError, match="round them"):
        Order([1, 0.1234567])


# ---------------------------------------------------------------- tasks
def test_each_member_walks_its_own_tasks_and_starts_over():
    found = [tasks(envs=BOTH, shuffle=False)[i] for i in range(12)]
    rows = [t.id for t in found if t.data["env"] == "finite"]
    assert rows == [f"finite/row{i % 3}" for i in range(8)]
    own = SeededTasks("train", seed=1)
    others = [t for t in found if t.data["env"] == "contained"]
    assert [t.seed for t in others] == [own[i].seed for i in range(4)]
    with pytest.raises(TypeError):
        len(tasks(envs=BOTH))


def test_a_finite_member_is_shuffled_in_every_epoch():
    source = tasks(envs=[member(Finite, options={"num": 9})])
    first, second = ([source[9 * epoch + i].id for i in range(9)] for epoch in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second) == [f"finite/row{i}" for i in range(9)]


def test_the_seed_decides_who_begins():
    first = {tasks(seed=seed, envs=BOTH)[0].data["env"] for seed in range(20)}
    assert first == {"finite", "contained"}


def test_the_state_of_another_mix_is_refused():
    given = {"envs": [{"id": f"{HERE}:Finite", "name": "x", "options": {"num": 5}}]}
    more = {"envs": [{"id": f"{HERE}:Finite", "name": "x", "options": {"num": 6}}]}
    sources = [
        SPEC.task_source("train", seed=0, **given),
        SPEC.task_source("train", seed=1, **given),
        SPEC.task_source("eval", seed=0, **given),
        SPEC.task_source("train", seed=0, **more),
        SPEC.task_source("train", seed=0, **given, shuffle=False),
    ]
    contents = [TaskLoader(source).state_dict()["content"] for source in sources]
    assert None not in contents
    assert len(set(contents)) == len(contents)


def test_held_out_tasks_end_when_each_member_has_been_through():
    small, large = member(Finite), member(Finite, name="large", options={"num": 5})
    source = tasks("eval", envs=[small, large])
    seen = [source[i].id for i in range(len(source))]
    assert [id for id in seen if id.startswith("large")] == [f"large/row{i}" for i in range(5)]
    assert set(seen) - {f"large/row{i}" for i in range(5)} == {f"finite/row{i}" for i in range(3)}
    with pytest.raises(IndexError):
        source[len(source)]


def test_a_member_without_tasks_is_refused():
    with pytest.raises(ConfigError, match="finite has no eval tasks"):
        tasks("eval", envs=[member(Finite, options={"num": 0})])


# ---------------------------------------------------------------- playing
def of(name: str) -> Task:
    source = tasks(envs=BOTH)
    return next(t for i in itertools.count() if (t := source[i]).data["env"] == name)


def test_the_member_plays_with_its_own_limits():
    async def play():
        env = SPEC.make(envs=BOTH)
        task = of("finite")
        messages, info = await env.reset(options={"task": task, "sandboxes": "theirs"})
        said = f"row {task.data['data']['row']}"
        assert messages == [{"role": "user", "content": said}]
        assert env.solve() == [{"role": "assistant", "content": said}]
        assert (info["env_id"], info["task_id"]) == ("finite", task.id)
        assert env.tools == Finite.tools
        steps = [await env.step({"role": "assistant"}) for _ in range(2)]
        assert [s.truncated for s in steps] == [False, True]
        assert steps[1].info == {"task_id": task.id, "stop_reason": "max_turns"}

    asyncio.run(play())


def test_it_needs_what_any_member_needs():
    env = SPEC.make(envs=BOTH)
    assert (env.needs_sandboxes, env.step_timeout_s, env.max_turns) == (True, 33.0, None)
    assert (env.uses_verifier, env.reward_range) == (False, None)
    alone = SPEC.make(envs=[member(Finite)])
    assert (alone.needs_sandboxes, alone.max_turns, alone.reward_range) == (False, 2, (0.0, 1.0))
    assert SPEC.make(envs=[member(Verified)]).uses_verifier


def test_a_member_is_made_once_and_closed_once():
    async def play():
        Contained.log.clear()
        env = SPEC.make(envs=BOTH)
        for _ in range(2):
            await env.reset(options={"task": of("contained"), "sandboxes": "theirs"})
            assert env.tools == ()
            assert (await env.step({"role": "assistant"})).reward == 1.0
        await env.close()
        await env.close()

    asyncio.run(play())
    assert Contained.log == ["reset with theirs"] * 2 + ["closed"]


def test_a_mix_in_a_mix_says_who_plays():
    async def play():
        inner = {"id": "arl_envs.mix:SPEC", "name": "inner", "options": {"envs": [member(Finite)]}}
        env = SPEC.make(envs=[inner])
        return (await env.reset(seed=4))[1]

    info = asyncio.run(play())
    assert info["env_id"] == "inner/finite"
    assert info["task_id"].startswith("inner/finite/row")


@cases("task", ["no task", Task("t", 1), Task("t", 1, {"env": "b"})], ids=str)
def test_foreign_tasks_are_refused(task):
    with pytest.raises(EnvError, match=r"expected a Task|not a task of a mix"):
        asyncio.run(SPEC.make(envs=BOTH).reset(options={"task": task}))


def test_a_task_of_another_mix_is_refused():
    with pytest.raises(EnvError, match="of 'contained'; this mix has finite"):
        asyncio.run(SPEC.make(envs=BOTH[:1]).reset(options={"task": of("contained")}))


# ---------------------------------------------------------------- what `envs` may be
def test_the_short_form_is_the_long_one():
    short = tasks(envs="math=2, arl_envs.code:SPEC")
    table = [{"id": "math", "weight": 2}, {"id": "arl_envs.code:SPEC"}]
    assert [short[i] for i in range(6)] == [tasks(envs=table)[i] for i in range(6)]


def test_twins_have_names_and_options_of_their_own():
    source = tasks(envs=[member(Finite, name=f"n{n}", options={"num": n}) for n in (1, 2)])
    assert {source[i].id for i in range(9)} == {"n1/row0", "n2/row0", "n2/row1"}


@cases(
    "envs, said",
    [
        ("", "math=2,code=1"),
        ([], "math=2,code=1"),
        (7, "got envs = 7"),
        ([{"id": "math", "wieght": 2}], "wieght"),
        ("math=x", "'x' of 'math=x' is no weight"),
        ("math=0", "above 0"),
        ("math=nan", "above 0"),
        ("math=1,math=2", "math is there twice"),
        ("mth=2", "did you mean math"),
        ([{"id": "math", "options": {"level": 77}}], "level"),
        ([{"id": "math", "options": {"max_turns": -1}}], "max_turns"),
        ([{"id": "math", "options": {"colour": 1}}], "colour"),
    ],
    ids=str,
)
def test_mistakes_are_explained_when_it_is_made(envs, said):
    with pytest.raises(ConfigError, match=said):
        SPEC.make(envs=envs)
