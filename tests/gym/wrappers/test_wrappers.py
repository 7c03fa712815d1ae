"""What `make` puts around an environment, each wrapper by itself and all together."""

import asyncio
import contextlib
import logging
from typing import Any

import anyio
import pytest

from agentgym_rl import Env, EnvSpec, Step, make
from agentgym_rl.core import ConfigError, EnvError, SeededTasks
from agentgym_rl.gym.wrappers import (
    Record,
    StepTimeout,
    Timeout,
    TransformReward,
    Wrapper,
    timeout,
    within,
)
from agentgym_rl.runtime import Repeated
from tests.kit.cases import cases

SAY = {"role": "assistant", "content": "hello"}
HERE = f"{__name__}:Counting"


class Counting(Env):
    """Ends at the third step and pays 1 there; `extra` is a name that no contract has."""

    extra = "of the environment"

    def __init__(self, *, pause_s: float = 0.0, result: Any = None) -> None:
        self.pause_s, self.result, self.steps = pause_s, result, 0

    async def reset(self, *, seed=None, options=None):
        self.steps = 0
        return [{"role": "user", "content": "go"}], {}

    async def step(self, action):
        self.steps += 1
        if self.pause_s:
            await asyncio.sleep(self.pause_s)
        if self.result is not None:
            return self.result
        return Step([], float(self.steps == 3), self.steps == 3, False, {})


class Doubling(Wrapper):
    def __init__(self, env: Env, *, by: float = 2.0) -> None:
        super().__init__(env)
        self.by = by

    async def step(self, action):
        step = await self.env.step(action)
        return step._replace(reward=step.reward * self.by)


def played(env: Env, steps: int = 3) -> list[Step]:
    async def play() -> list[Step]:
        await env.reset(seed=1)
        return [await env.step(SAY) for _ in range(steps)]

    return asyncio.run(play())


def half(step: Step) -> float:
    return step.reward / 2


def test_steps_pass_through():
    assert [step[1:4] for step in played(make(HERE))] == [
        (0.0, False, False),
        (0.0, False, False),
        (1.0, True, False),
    ]


@cases("limit, last", [(2, (False, True)), (3, (True, False))])
def test_a_limit_truncates_unless_the_episode_ends_anyway(limit, last):
    step = played(make(HERE, max_turns=limit), limit)[-1]
    assert (step.terminated, step.truncated) == last
    assert step.info.get("stop_reason") == ("max_turns" if limit == 2 else None)


def test_the_limit_counts_every_episode_anew():
    env = make(HERE, max_turns=2)
    assert [played(env, 2)[-1].truncated for _ in range(2)] == [True, True]


def test_no_episode_no_step():
    env = make(HERE)
    with pytest.raises(EnvError, match="call reset first"):
        asyncio.run(env.step(SAY))
    with pytest.raises(EnvError, match="has ended"):
        played(env, 4)
    asyncio.run(env.close())
    with pytest.raises(EnvError, match="closed"):
        asyncio.run(env.step(SAY))


def test_a_slow_step_is_the_environments_failure():
    with pytest.raises(StepTimeout, match=r"env\.step took more than 0\.05 s"):
        played(make(HERE, step_timeout_s=0.05, pause_s=9.0))
    assert len(played(make(HERE, step_timeout_s=9.0, pause_s=0.001))) == 3


def test_a_timeout_of_the_environments_own_is_not_ours():
    class Impatient(Counting):
        async def step(self, action):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(9)
            raise AssertionError

    with pytest.raises(TimeoutError) as caught:
        played(Timeout(Impatient(), 5.0))
    assert not isinstance(caught.value, StepTimeout)


async def _waits() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(9)


async def _ends_a_task() -> None:
    helper = asyncio.ensure_future(asyncio.sleep(9))
    await asyncio.sleep(0)
    helper.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await helper


async def _leaves_a_scope() -> None:
    with anyio.move_on_after(0.01):
        await anyio.sleep(9)


@cases("ends", [_waits, _ends_a_task, _leaves_a_scope])
def test_work_that_ended_a_wait_of_its_own_goes_on(ends, monkeypatch):
    monkeypatch.setattr(timeout, "SWALLOWED_S", 0.03)

    async def work() -> str:
        await ends()
        await asyncio.sleep(0.1)
        return "ended"

    assert asyncio.run(within(60.0, work())) == "ended"


@pytest.mark.slow
@cases("caught", [asyncio.CancelledError, BaseException])
@cases("deep", [0, 2], ids=["alone", "inside other deadlines"])
def test_an_environment_that_swallows_its_deadline_is_left_alone(caught, deep, caplog, monkeypatch):
    """The deadline that has passed is the one that is reported, however many are around it."""

    class Swallowing(Counting):
        async def step(self, action):
            while True:
                with contextlib.suppress(caught):
                    await asyncio.sleep(3600)

    async def play() -> None:
        env = Timeout(Swallowing(), 0.05)
        await env.reset(seed=1)
        call = env.step(SAY)
        for _ in range(deep):
            call = within(60.0, call)
        with pytest.raises(StepTimeout, match=r"env\.step took more than 0\.05 s"):
            await call
        assert not asyncio.current_task().cancelling()

    monkeypatch.setattr(timeout, "_warnings", Repeated(timeout.log))
    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "test_wrappers.py" in said[0]
    assert "in step is abandoned" in said[0]


def test_a_cancelled_step_is_cancelled_in_the_environment():
    ended: list[str] = []

    class Waiting(Counting):
        async def step(self, action):
            try:
                await asyncio.sleep(9)
            finally:
                ended.append("cancelled")
            raise AssertionError

    async def main() -> None:
        env = Timeout(Waiting(), 5.0)
        async with asyncio.timeout(0.05):
            await env.step(SAY)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert ended == ["cancelled"]


@cases(
    "result",
    [
        (),
        ([], 0.0, False, False),
        ("text", 0.0, False, False, {}),
        (["text"], 0.0, False, False, {}),
        ([], "much", False, False, {}),
        ([], float("nan"), False, False, {}),
        ([], 0.0, False, False, {"metrics": {"x": float("inf")}}),
        ([], 0.0, False, False, {"metrics": {"x": "many"}}),
    ],
    ids=range(8),
)
def test_what_is_no_step_is_refused(result):
    with pytest.raises((TypeError, ValueError), match=r"env\.step"):
        played(make(HERE, result=result))


def test_yours_go_between_innermost_first():
    entry = f"{__name__}:Doubling"
    wrappers = [entry, {"entry_point": entry, "kwargs": {"by": 10.0}}]
    env = make(HERE, wrappers=wrappers)
    assert played(env)[-1].reward == 20.0
    assert repr(env).startswith(
        "OrderEnforcing(PassiveChecker(Doubling(Doubling(Timeout(PassiveChecker("
    )


def nan(step: Step) -> float:
    return float("nan")


class Untupled(Wrapper):
    async def step(self, action):
        return None


PARTS = [{"type": "text", "text": "2 + "}, {"type": "text", "text": "3?"}]


class InParts(Wrapper):
    """Says everything in parts."""

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": PARTS}], {}

    async def step(self, action):
        return (await super().step(action))._replace(
            observation=[{"role": "user", "content": PARTS}]
        )


class Showing(Wrapper):
    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": [{"type": "image_url"}]}], {}


def test_text_parts_of_an_environment_come_as_text():
    async def play():
        env = make(HERE, wrappers=[f"{__name__}:InParts"])
        first, _ = await env.reset(seed=0)
        step = await env.step({"role": "assistant", "content": "x"})
        await env.close()
        return first, step.observation

    assert asyncio.run(play()) == ([{"role": "user", "content": "2 + 3?"}],) * 2


class Unasked(Wrapper):
    async def reset(self, *, seed=None, options=None):
        return None


SPOILT = {
    "reward": (
        {
            "entry_point": f"{TransformReward.__module__}:TransformReward",
            "kwargs": {"function": f"{__name__}:nan"},
        },
        "got nan",
    ),
    "step": (f"{__name__}:Untupled", "env.step: got None, as without `return`; expected Step"),
    "reset": (f"{__name__}:Unasked", "env.reset: got None, as without `return`: expected"),
    "image": (f"{__name__}:Showing", "got the part {'type': 'image_url'.*, expected text"),
}


@cases("wrapper, said", SPOILT.values(), ids=SPOILT)
def test_what_yours_return_is_checked_too(wrapper, said):
    with pytest.raises((TypeError, ValueError), match=said):
        played(make(HERE, wrappers=[wrapper]))


@cases(
    "wrapper, said",
    [
        ("no_such_module:X", "cannot import"),
        (f"{__name__}:half", "wrapper"),
        ({"entry_point": f"{__name__}:Doubling", "kwargs": {"buy": 1}}, "buy"),
        ({"entry": "x"}, "entry"),
    ],
    ids=range(4),
)
def test_a_wrapper_that_is_none_is_a_mistake_in_the_configuration(wrapper, said):
    with pytest.raises(ConfigError, match=said):
        make(HERE, wrappers=[wrapper])


def test_the_environment_inside_is_reached():
    env = make(HERE)
    assert env.extra == "of the environment"
    assert type(env.unwrapped) is Counting
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = env.nothing_like_it


class Levelled(Counting):
    """Its tasks are of its level."""

    def __init__(self, *, level: int = 1) -> None:
        super().__init__()

    @classmethod
    def task_source(cls, split, *, seed, level=1):
        return SeededTasks(split, seed=100 * level + seed)


LEVELLED = f"{__name__}:Levelled"


def test_what_make_made_gives_its_own_tasks():
    env = make(LEVELLED, level=2, wrappers=[f"{__name__}:Doubling"])
    assert env.task_source("train", seed=7)[0].id == "train-207-0"
    assert env.task_source("train", seed=7, level=3)[0].id == "train-307-0"
    assert env.unwrapped.task_source("eval", seed=7)[0].id == "eval-107-0"  # as its class does


def test_a_wrapper_by_itself_gives_the_tasks_inside():
    assert Record(Levelled()).task_source("train", seed=7)[0].id == "train-107-0"
    assert Record(make(LEVELLED, level=2)).task_source("train", seed=7)[0].id == "train-207-0"


class Registered(Wrapper):
    """A wrapper with its environment inside, as one that is registered may be."""

    def __init__(self) -> None:
        super().__init__(Levelled())


def test_a_wrapper_may_be_the_environment():
    env = make(f"{__name__}:Registered")
    assert env.task_source("train", seed=7)[0].id == "train-7-0"


def test_make_makes_another_of_the_same():
    env = make(HERE, max_turns=2, wrappers=[f"{__name__}:Doubling"])
    assert isinstance(env.spec, EnvSpec)
    again = make(EnvSpec.from_json(env.spec.to_json()))
    assert (repr(again).count("Doubling"), again.max_turns) == (1, 2)


def test_a_record_is_a_transcript_and_gymnasiums_episode():
    env = Record(Counting())
    last = played(env)[-1]
    assert (last.info["episode"]["r"], last.info["episode"]["l"]) == (1.0, 3)
    assert len(env.transcript) == 4
    assert env.render().startswith("[user] go\n\n[assistant] hello")


@cases("function", [half, f"{__name__}:half"], ids=["function", "path"])
def test_a_shaped_reward_keeps_the_old_one(function):
    last = played(TransformReward(Counting(), function))[-1]
    assert last.reward == 0.5
    assert last.info["reward_components"] == {"unshaped": 1.0}
