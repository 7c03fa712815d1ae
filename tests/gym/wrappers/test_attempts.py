"""Several attempts at a task, as one episode."""

import asyncio
from typing import Any

import pytest

from agentgym_rl import Env, EnvSpec, Step, Task, make
from agentgym_rl.core import ConfigError
from agentgym_rl.gym.wrappers import Attempts, Wrapper
from tests.kit.cases import cases

HERE = f"{__name__}:Guess"
TASK = Task("t", 7, {"number": "42"})


class Guess(Env):
    """Two turns: the first pays .25 if it says so; the last pays 1 for the number, .5 for near."""

    max_turns = 2

    async def reset(self, *, seed=None, options=None):
        task = (options or {}).get("task")
        self.number = task.data["number"] if task else str(seed)
        self.turn = 0
        return [{"role": "user", "content": "Which number?"}], {"task_id": "t"}

    async def step(self, action):
        self.turn += 1
        said = action["content"]
        if self.turn == 1:
            return Step(
                [{"role": "user", "content": "Sure?"}], 0.25 * (said == "pay"), False, False, {}
            )
        reward = {self.number: 1.0, "near": 0.5}.get(said, 0.0)
        info = {"stop_reason": "answer", "metrics": {"said": 1}}
        return Step([{"role": "user", "content": f"{said}?"}], reward, True, False, info)

    def solve(self):
        return [{"role": "assistant", "content": text} for text in ("", self.number)]


def played(env: Env, *said: Any) -> list[Step]:
    async def play() -> list[Step]:
        await env.reset(options={"task": TASK})
        actions = [{"role": "assistant", "content": s} if isinstance(s, str) else s for s in said]
        return [await env.step(action) for action in actions]

    return asyncio.run(play())


def total(steps: list[Step]) -> float:
    return sum(step.reward for step in steps)


def test_another_attempt_after_a_failure_pays_less():
    steps = played(make(HERE, max_attempts=3, retry_discount=0.5), "", "1", "", "2", "", "42")
    assert [step.terminated for step in steps] == [False] * 5 + [True]
    assert total(steps) == 0.25
    assert steps[-1].info["metrics"] == {"said": 1, "attempts": 3}
    earned = {f"attempt_{n}": reward for n, reward in ((1, 0.0), (2, 0.0), (3, 1.0))}
    assert steps[-1].info["reward_components"] == earned
    assert steps[-1].info["stop_reason"] == "answer"


def test_the_agent_is_told_and_not_asked_again():
    steps = played(make(HERE, max_attempts=2, feedback="Think."), "", "1", "")
    assert steps[1].observation == [{"role": "user", "content": "1?\n\nThink."}]
    assert "stop_reason" not in steps[1].info
    assert steps[2].observation == [{"role": "user", "content": "Sure?"}]


def test_what_a_failed_attempt_paid_is_taken_back():
    env = make(HERE, max_attempts=2, retry_discount=0.5)
    assert [step.reward for step in played(env, "pay", "near", "", "near")] == [
        0.25,
        -0.25,
        0,
        0.25,
    ]


def test_success_ends_the_episode_at_once():
    (_, last) = played(make(HERE, max_attempts=3, retry_discount=0.5), "", "42")
    assert (last.reward, last.terminated, last.info["metrics"]["attempts"]) == (1.0, True, 1)


def test_what_counts_as_success_may_be_set():
    (_, last) = played(make(HERE, max_attempts=3, success_reward=0.5), "", "near")
    assert (last.reward, last.terminated) == (0.5, True)


def test_turns_of_the_environment_are_an_attempt_s_and_those_of_make_the_episode_s():
    assert make(HERE, max_attempts=3).max_turns == 6
    steps = played(make(HERE, max_attempts=3, max_turns=3), "", "1", "pay")
    assert (steps[-1].truncated, total(steps)) == (True, 0.25)
    steps = played(make(HERE, max_attempts=3, max_turns=2), "pay", "near")
    assert (steps[-1].terminated, total(steps)) == (True, 0.75)  # no turn is left to try again


class Slow(Guess):
    """Its end, and .5, whenever it is said to."""

    max_turns = 2

    async def step(self, action):
        ends = action["content"] == "end"
        return Step([{"role": "user", "content": "Go."}], 0.5 * ends, ends, False, {})


class Narrow(Wrapper):
    """Leaves three turns."""

    max_turns = 3  # type: ignore[assignment]


@cases(
    "said, options",
    [
        (("x", "x", "x", "end"), {}),
        (("x", "x", "x", "end"), {"max_turns": 4}),
        (("x", "x", "end"), {"wrappers": [f"{__name__}:Narrow"]}),
    ],
    ids=["its_own", "of_make", "of_a_wrapper"],
)
def test_no_attempt_begins_without_a_turn_wherever_the_limit_comes_from(said, options):
    steps = played(make(f"{__name__}:Slow", max_attempts=2, **options), *said)
    assert (steps[-1].terminated, steps[-1].truncated, total(steps)) == (True, False, 0.5)


class Tenths(Guess):
    """Ten steps of .1."""

    max_turns = 10

    async def step(self, action):
        self.turn += 1
        return Step([{"role": "user", "content": "Go."}], 0.1, self.turn == 10, False, {})


def test_ten_tenths_are_success():
    steps = played(make(f"{__name__}:Tenths", max_attempts=2), *["go"] * 10)
    assert steps[-1].terminated
    assert total(steps) == pytest.approx(1.0)


def test_truncation_ends_all_attempts():
    class Cut(Guess):
        async def step(self, action):
            return Step([], 0.0, False, True, {})

    (step,) = played(Attempts(Cut(), 3), "1")
    assert step.truncated


def test_open_tool_calls_are_answered_before_the_feedback():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    action = {"role": "assistant", "content": None, "tool_calls": [call]}
    steps = played(make(HERE, max_attempts=2), "", action)
    assert [message["role"] for message in steps[1].observation] == ["tool", "user"]
    assert steps[1].observation[0]["tool_call_id"] == "c1"


def test_without_a_task_it_is_the_same_one_all_the_same():
    env = Attempts(Guess(), 2)

    async def play() -> tuple[Any, Any]:
        await env.reset()
        first = env.solve()
        for text in ("", "x"):
            await env.step({"role": "assistant", "content": text})
        return first, env.solve()

    first, again = asyncio.run(play())
    assert first == again
    assert first[1]["content"].isdigit()


def test_solving_takes_one_attempt():
    env = make(HERE, max_attempts=3, retry_discount=0.5)
    assert total(played(env, "", "42")) == 1.0
    assert [message["content"] for message in env.solve() or ()] == ["", "42"]


def test_the_spec_holds_it():
    made = make(HERE, max_attempts=2, retry_discount=0.5, feedback="No.")
    assert isinstance(made.spec, EnvSpec)
    again = EnvSpec.from_json(made.spec.to_json())
    assert (again.max_attempts, again.retry_discount, again.feedback) == (2, 0.5, "No.")
    assert total(played(make(again), "", "1", "", "42")) == 0.5


@cases("options", [{"max_attempts": 0}, {"retry_discount": 1.5}])
def test_nonsense_is_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        make(HERE, **options)


@cases("option", [{"feedback": "No."}, {"retry_discount": 0.5}, {"success_reward": 1}])
def test_options_of_attempts_without_attempts_are_refused(option):
    (name,) = option
    with pytest.raises(ConfigError, match=f"{name} has no effect with max_attempts = 1"):
        make(HERE, **option)
    spec = EnvSpec(id="guess", entry_point=HERE, **option)  # for whom sets max_attempts
    assert "Attempts" in repr(spec.make(max_attempts=2))
    assert "Attempts" not in repr(spec.make(max_attempts=2).spec.make(max_attempts=1))
