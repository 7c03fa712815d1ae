"""Tasksets of the real verifiers package that have tools, or a user, in several turns."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest
from arl_envs.verifiers import SPEC
from arl_envs.verifiers.bridge import bridge_to, interpreter

from agentgym_rl.core import ConfigError, EnvError, InfraError
from agentgym_rl.gym import Step
from tests.kit.cases import cases

TOOLS, GAME = (str(Path(__file__).with_name(f"toy_{name}.py")) for name in ("tools", "game"))
pytestmark = pytest.mark.slow  # verifiers takes seconds to import


def say(text: str = "", *calls: tuple[str, str], first: int = 0) -> dict:
    tool_calls = [
        {"id": f"call-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls, first)
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": tool_calls} if calls else {})


async def started(taskset: str, **options):
    env = SPEC.make(taskset=taskset, **options)
    task = SPEC.task_source("train", seed=0, taskset=taskset, **options)[0]
    first, _ = await env.reset(options={"task": task})
    return env, task.data["number"], first


async def run(taskset: str, *actions, **options) -> tuple[list, list[Step]]:
    """Play; an action may be made from the number of the task."""
    env, number, first = await started(taskset, **options)
    try:
        made = [action(number) if callable(action) else action for action in actions]
        return first, [await env.step(action) for action in made]
    finally:
        await env.close()


def play(taskset: str, *actions, **options) -> tuple[list, list[Step]]:
    return asyncio.run(run(taskset, *actions, **options))


def content(number: int) -> str:
    return f"ball {number}"


def test_tools_are_offered_called_and_paid(python):
    async def whole():
        env, number, first = await started(TOOLS)
        names = [tool["function"]["name"] for tool in env.tools]
        looked = await env.step(say("", ("box_look", "{}"), ("spell", '{"word": "ab"}')))
        done = await env.step(say(content(number)))
        await env.close()
        return names, env.tools, first, number, looked, done

    names, tools, first, number, looked, done = asyncio.run(whole())
    assert names == ["spell", "box_look"]
    assert tools[1]["function"]["description"] == "Look into a box."
    assert tools[1]["function"]["parameters"]["properties"]["box"]["type"] == "string"
    assert first == [{"role": "user", "content": "What is in the red box?"}]
    assert looked.observation == [
        {"role": "tool", "tool_call_id": "call-0", "content": content(number)},
        {"role": "tool", "tool_call_id": "call-1", "content": "a\nb\n1"},
    ]
    assert looked[1:4] == (0.0, False, False)
    assert done[1:4] == (1.0, True, False)
    assert done.info["metrics"] == {"looks": 1.0}
    assert done.info["reward_components"] == {"right": 1.0}


@cases(
    "call, said",
    [
        (("box_look", '{"box": "blue"}'), "there is no blue box"),
        (("box_look", '{"box": 7}'), "valid string"),
        (("box_look", "{"), "the arguments are no JSON"),
        (("box_look", "[]"), "no JSON object"),
        (("look", "{}"), "unknown tool 'look'; there are box_look, spell"),
    ],
    ids=range(5),
)
def test_a_wrong_call_is_answered_and_the_episode_goes_on(call, said, python):
    _, (wrong, right) = play(TOOLS, say("", call), lambda number: say(content(number)))
    assert said in wrong.observation[0]["content"]
    assert (right.reward, right.terminated) == (1.0, True)


def test_a_stop_of_the_task_ends_the_episode_with_every_call_answered(python):
    calls = [("box_look", "{}")] * 3
    _, (done,) = play(TOOLS, say("", *calls))
    assert [message["tool_call_id"] for message in done.observation] == [
        "call-0", "call-1", "call-2",
    ]  # fmt: skip
    assert (done.terminated, done.reward, done.info["stop_reason"]) == (True, 0.0, "enough")


def test_episodes_at_once_keep_their_own_state(python):
    async def both():
        looks = [say("", ("box_look", "{}"))]
        return await asyncio.gather(
            *(run(TOOLS, *looks * n, lambda number: say(content(number))) for n in (0, 1, 2, 1))
        )

    found = asyncio.run(both())
    assert [steps[-1].info["metrics"]["looks"] for _, steps in found] == [0.0, 1.0, 2.0, 1.0]
    assert [steps[-1].reward for _, steps in found] == [1.0] * 4


def test_an_environment_is_the_user_of_a_game(python):
    options = {"config": {"opens": True}}

    def secret(number: int) -> dict:
        return say(str(number % 10))

    for given, opening in (({}, "Guess a number from 0 to 9."), (options, "A number from 0 to 9.")):
        first, (wrong, right) = play(GAME, say("~"), secret, **given)
        assert [m["content"] for m in first] == ["Play.", opening]
        assert wrong[:4] == ([{"role": "user", "content": "lower"}], 0.0, False, False)
        assert right[1:4] == (1.25, True, False)  # won, and half of a half for two turns
        assert right.info["reward_components"] == {"short": 0.25, "won": 1.0}
        assert right.info["metrics"] == {"episodes": 1.0}


def test_the_turns_of_the_environment_truncate_and_are_scored(python):
    _, steps = play(GAME, *[say("~")] * 4)
    assert [step.truncated for step in steps] == [False, False, False, True]
    assert steps[-1].reward == 0.125
    _, steps = play(GAME, *[say("~")] * 2, env={"player": {"max_turns": 2}})
    assert (steps[-1].truncated, steps[-1].info["stop_reason"]) == (True, "max_turns")


def test_failures_of_the_environment_are_no_rewards(python):
    with pytest.raises(EnvError, match=r"the board fell over \(.*toy_game.py:\d+\)"):
        play(GAME, say("1"), env={"raises": True})
    with pytest.raises(ConfigError, match="begin twice in one episode"):
        play(GAME, lambda number: say(str(number % 10)), env={"twice": True})


@cases(
    "taskset, options, problem",
    [
        (TOOLS, {"config": {"remote": True}}, "an MCP server elsewhere.*McpTools"),
        (TOOLS, {"env": {"id": "no-such-env"}}, "no-such-env"),
        (GAME, {"env": {"turns": 3}}, "its env takes .*player"),
        (GAME, {"env": {"player": {"max_output_tokens": 3}}}, "rollout.max_tokens"),
    ],
    ids=range(4),
)
def test_what_cannot_be_played_is_a_config_error(taskset, options, problem, python):
    with pytest.raises(ConfigError, match=problem):
        SPEC.task_source("train", seed=0, taskset=taskset, **options)


def test_an_episode_whose_process_died_is_infrastructure_and_the_next_is_whole(python):
    async def killed():
        env, _, _ = await started(GAME)
        bridge_to(GAME, interpreter(python)).close()
        with pytest.raises(InfraError, match="the process that played this episode has ended"):
            await env.step(say("1"))
        await env.close()

    asyncio.run(killed())
    _, (done,) = play(GAME, lambda number: say(str(number % 10)))
    assert done.terminated


def test_an_episode_that_waits_keeps_its_process_and_one_that_is_left_does_not(python):
    async def whole():
        env, _, _ = await started(GAME)
        life = bridge_to(GAME, interpreter(python))._life
        assert life is not None
        life._end_if_idle()
        assert not life._over
        step = await env.step(say("~"))
        assert not step.terminated
        await env.close()
        return life

    life = asyncio.run(whole())
    for _ in itertools.takewhile(lambda _: life._waiting or life._open_plays, range(600)):
        time.sleep(0.05)  # it is told, and nobody waits
    life._end_if_idle()
    assert life._over
