"""Tasksets of the real verifiers package whose environments have several agents."""

import asyncio
from pathlib import Path

import pytest
from arl_envs.verifiers import SPEC
from arl_selfplay.game import check_seats, check_single_agent

from agentgym_rl.core import ConfigError, EnvError
from agentgym_rl.gym import Step
from agentgym_rl.gym.seats import SeatEnv, Table
from tests.kit.cases import cases

from .test_turns import GAME, say

START = "3 or 4 matches"
DUEL = str(Path(__file__).with_name("toy_duel.py"))
pytestmark = pytest.mark.slow  # verifiers takes seconds to import


async def until_over(env, seat, actions, heard):
    """Play a seat; `heard` gets every message, after the name of its seat."""
    said, info = await env.reset()
    heard += [(seat, message["content"]) for message in said]
    if "over" in info:
        return Step([], info["over"], True, False, info)
    actions = iter(actions)
    while True:
        step = await env.step(next(actions))
        heard += [(seat, message["content"]) for message in step.observation]
        if step.terminated or step.truncated:
            return step


def play(seats, taskset=DUEL, matches=3, **env):
    """Play all seats to the end; return their last steps, and what was heard."""

    async def main():
        options, heard = {"taskset": taskset, "env": env}, []
        game = SPEC.make(**options).unwrapped
        tasks = SPEC.task_source("train", seed=0, **options)
        task = next(t for t in tasks if t.data["number"] % 2 == matches - 3)
        table = Table(game, {})
        try:
            await table.start(seed=task.seed, options={"task": task})
            async with asyncio.TaskGroup() as group:
                ends = [
                    group.create_task(until_over(SeatEnv(table, seat), seat, actions, heard))
                    for seat, actions in seats.items()
                ]
        finally:
            await game.close()
        return [end.result() for end in ends], heard

    try:
        return asyncio.run(main())
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


def duel(first, second, **options):
    return play({"first": map(say, first), "second": map(say, second)}, **options)


def test_agents_are_seats_that_act_in_turns_and_are_paid_each(python):
    (one, other), heard = duel("11", "1")
    assert (one.reward, other.reward) == (1.0, -1.0)
    assert (one.terminated, other.terminated) == (True, True)
    assert one.info["reward_components"] == {"won": 1.0}
    assert one.info["metrics"] == {"agents": 2.0, "trainable": 1.0}
    assert other.info["metrics"]["trainable"] == 0.0
    assert [text for seat, text in heard if seat == "first"] == ["Take 1 or 2.", START, "1 left"]
    assert [text for seat, text in heard if seat == "second"] == ["Take 1 or 2.", "2 left"]


def test_tools_are_the_seats_own_and_keep_its_turn(python):
    calls = [say("", ("table_count", "{}")), say("2"), say("1")]
    (one, other), heard = play({"first": calls, "second": [say("1")]}, matches=4)
    assert (one.reward, other.reward) == (1.0, -1.0)
    assert [text for seat, text in heard if seat == "first"][2:] == ["4", "1 left"]


def test_agents_that_speak_together_reply_one_after_the_other(python):
    ends, heard = duel("a", "b", kind="together")
    assert [end.terminated for end in ends] == [True, True]
    assert [end.info["stop_reason"] for end in ends] == ["user_closed", "user_closed"]
    assert [seat for seat, text in heard if text == START] == ["first", "second"]


def test_an_agent_that_is_not_asked_is_paid_nothing(python):
    (first, second), heard = duel("", "1", kind="alone")
    assert (first.reward, first.info["stop_reason"]) == (0.0, None)
    assert second.terminated
    assert [text for seat, text in heard if seat == "first"] == []


def test_a_seat_at_the_limit_of_its_agent_is_truncated(python):
    seats = {"first": [say("1")], "second": [say("1")]}
    ends, _ = play(seats, first={"max_turns": 1})
    assert [(end.terminated, end.truncated) for end in ends] == [(False, True), (True, False)]
    assert ends[0].info["stop_reason"] == "max_turns"


def test_a_failure_of_the_environment_is_no_reward(python):
    with pytest.raises(EnvError, match="the table fell over"):
        duel("1", "1", kind="raises")


def test_seats_are_checked_like_those_of_any_game(python):
    spec = SPEC.with_options(taskset=DUEL)
    env = spec.make()
    check_seats({"first": "policy", "second": "policy"}, spec, env)
    with pytest.raises(ConfigError, match="did you mean first"):
        check_seats({"frist": "policy", "second": "policy"}, spec, env)
    with pytest.raises(ConfigError, match=r"second 'env:random': the players of .* are none"):
        check_seats({"first": "policy", "second": "env:random"}, spec, env)
    with pytest.raises(ConfigError, match="no players of its own for its seats, first, second"):
        check_single_agent(spec, env)
    one = SPEC.with_options(taskset=GAME)
    with pytest.raises(ConfigError, match="has one seat"):
        check_seats({"player": "policy"}, one, one.make())
    with pytest.raises(EnvError, match="no players of its own for the seats second"):
        asyncio.run(spec.make().reset(seed=1))


@cases(
    "pins, said",
    [
        ({"model": "gpt-x"}, "second.model: rollout.seats names the player"),
        ({"sampling": {"temperature": 0.1}}, "second.sampling: set rollout.temperature"),
        ({"max_total_tokens": 7}, "second.max_total_tokens: set rollout.max_tokens"),
    ],
    ids=range(3),
)
def test_an_environment_that_chooses_a_player_itself_is_refused(pins, said, python):
    with pytest.raises(ConfigError, match=said):
        SPEC.task_source("train", seed=0, taskset=DUEL, env={"second": pins})


def test_the_modeled_user_of_verifiers_is_a_seat(python):
    """Its environment user-sim, over any taskset: the user has the prompt as its own situation."""
    seats = {"user": [say("0 to 9?"), say("No."), say("###DONE###")]}
    seats["assistant"] = [say("5"), say("7")]
    (user, assistant), heard = play(seats, taskset=GAME, id="user-sim")
    assert (user.reward, assistant.reward) == (0.0, 0.25)  # half of a half for two turns
    assert assistant.info["metrics"] == {"user_turns": 3.0}
    assert [text for seat, text in heard if seat == "assistant"] == ["Play.", "0 to 9?", "No."]
    assert any(seat == "user" and "Guess a number" in text for seat, text in heard)
