"""Gymnasium's own environments, played in text: the same rewards, ends and seeds."""

import asyncio
import json

import gymnasium
import numpy as np
import pytest
from arl_envs.gymnasium import SPEC
from arl_envs.gymnasium.env import GymnasiumEnv
from arl_envs.gymnasium.tasks import OpeningTasks
from arl_envs.gymnasium.toy_text import words_of

from agentgym_rl.core import ConfigError, EnvError
from agentgym_rl.gym import Env, EnvSpec, Step
from agentgym_rl.gym.data import derived_number
from tests.kit.cases import cases

from . import toys  # noqa: F401 (registers them)

PACKAGED = {
    "FrozenLake-v1": {"is_slippery": True},
    "Taxi-v4": {},
    "CliffWalking-v1": {},
    "Blackjack-v1": {"natural": True},
    "CartPole-v1": {},
    "MountainCar-v0": {},
    "Acrobot-v1": {},
}
SOLVED = {
    "FrozenLake-v1": ({"is_slippery": False}, 1.0),
    "FrozenLake8x8-v1": ({"is_slippery": False}, 1.0),
    "Taxi-v4": ({}, 9.0),
    "CliffWalking-v1": ({}, -13.0),
}


def said(text: str) -> dict:
    return {"role": "assistant", "content": text}


async def playing(env: Env, replies: list, *, seed: int = 1) -> list[Step]:
    await env.reset(seed=seed)
    steps = []
    for reply in replies:
        steps.append(await env.step(reply if isinstance(reply, dict) else said(reply)))
        if steps[-1].terminated or steps[-1].truncated:
            break
    await env.close()
    return steps


def play(id: str, replies: list, *, seed: int = 1, **options) -> list[Step]:
    return asyncio.run(playing(SPEC.make(id=id, **options), replies, seed=seed))


def first(id: str, *, seed: int = 1, **options) -> list:
    env = SPEC.make(id=id, **options)
    return asyncio.run(env.reset(seed=seed))[0]


def by_hand(id: str, numbers: list[int], *, seed: int, **options) -> list[tuple]:
    env = gymnasium.make(id, **options)
    env.reset(seed=seed)
    steps = []
    for number in numbers:
        steps.append(env.step(number)[1:4])
        if any(steps[-1][1:]):
            break
    return steps


@cases("id", PACKAGED)
@cases("seed", [1, 2])
def test_rewards_and_ends_are_gymnasiums(id, seed):
    space = gymnasium.make(id, **PACKAGED[id]).action_space
    space.seed(seed)
    numbers = [int(space.sample()) for _ in range(250)]
    words = words_of(id)
    replies = [words.actions[n] if words else str(n) for n in numbers]
    steps = play(id, replies, seed=seed, **PACKAGED[id], max_turns=1000)
    assert [s[1:4] for s in steps] == by_hand(id, numbers, seed=seed, **PACKAGED[id])


def test_frozen_lake_is_short():
    system, user = first("FrozenLake-v1", is_slippery=False)
    assert system["content"] == "Reply with one action: left, down, right, up."
    assert user["content"].endswith("SFFF\nFHFH\nFFFH\nHFFG\nRow 1, column 1.")
    (step,) = play("FrozenLake-v1", ["right"], is_slippery=False)
    assert step.observation == [{"role": "user", "content": "Row 1, column 2."}]


def test_the_drawing_is_an_option():
    user = first("FrozenLake-v1", render="ansi")[-1]
    assert "\n[S]FFF\nFHFH" in user["content"]
    assert "\x1b" not in user["content"]


def test_taxi_and_blackjack_in_words():
    taxi, hand = first("Taxi-v4")[-1], first("Blackjack-v1")[-1]
    assert "Taxi: row 3, column 3. Passenger at B (row 5, column 4)." in taxi["content"]
    assert "Your sum is 20; the dealer shows 7." in hand["content"]


@cases("id", SOLVED)
def test_shortest_paths_are_gold(id):
    options, best = SOLVED[id]

    async def solved() -> list[Step]:
        env = SPEC.make(id=id, **options)
        await env.reset(seed=1)
        return await playing(env, list(env.solve()))

    steps = asyncio.run(solved())
    assert sum(step.reward for step in steps) == best
    assert steps[-1].terminated


@cases(
    "id, options",
    [
        ("FrozenLake-v1", {"is_slippery": True}),
        ("Taxi-v4", {"fickle_passenger": True}),
        ("Blackjack-v1", {}),
        ("CartPole-v1", {}),
    ],
)
def test_chance_has_no_gold(id, options):
    env = SPEC.make(id=id, **options)
    asyncio.run(env.reset(seed=1))
    assert env.solve() is None


def test_the_time_limit_truncates():
    step = play("FrozenLake-v1", ["left"] * 101, is_slippery=False)[-1]
    assert (step.terminated, step.truncated) == (False, True)
    assert step.info["stop_reason"] == "max_episode_steps"


def test_what_is_no_action_is_a_random_one():
    wrong, right = play("FrozenLake-v1", ["up or so", "right"], is_slippery=False)
    asked, _, seen = wrong.observation[0]["content"].partition("\n")
    assert asked.endswith("random one was taken. Reply with one action: left, down, right, up.")
    assert seen.startswith("Row ")
    assert "up or so" in wrong.info["invalid_action"]
    assert right.info["metrics"] == {"invalid_actions": 1}


@cases("id", ["CliffWalking-v1", "Taxi-v4", "CartPole-v1"])
def test_nonsense_is_worth_what_random_play_is(id):
    steps = play(id, ["hm"] * 300, max_turns=1000)
    assert steps == play(id, ["hm"] * 300, max_turns=1000)
    assert steps != play(id, ["hm"] * 300, seed=2, max_turns=1000)
    space = gymnasium.make(id).action_space
    space.seed(derived_number("1/no action"))
    numbers = [int(space.sample()) for _ in range(300)]
    assert [s[1:4] for s in steps] == by_hand(id, numbers, seed=1)


def test_nonsense_is_no_way_around_what_actions_cost():
    assert sum(step.reward for step in play("CliffWalking-v1", ["?"] * 300)) < -13


def test_tool_calls_are_answered():
    calls = [{"id": "a", "type": "function", "function": {"name": "left", "arguments": "{}"}}]
    (step,) = play("FrozenLake-v1", [{**said("left"), "tool_calls": calls}])
    assert [(m["role"], m.get("tool_call_id")) for m in step.observation] == [
        ("tool", "a"),
        ("user", None),
    ]
    assert "Row " in step.observation[1]["content"]
    assert "no tools" in step.info["invalid_action"]


@cases("text", ["\x00\ud800" * 1000, "x" * 1_000_000, "", " \n", "dow n"])
def test_hostile_replies_are_no_actions(text):
    (step,) = play("FrozenLake-v1", [text])
    assert step.info["invalid_action"]
    json.dumps(step.observation).encode()


def test_text_actions():
    (wrong,), (right,) = (play("toys/speller-v0", [reply]) for reply in ("dab", " cab\n"))
    assert "1 to 8 characters out of 'abc'" in wrong.observation[0]["content"]
    assert (right.reward, right.terminated) == (1.0, True)


def test_multidiscrete_actions():
    replies = ["-1", "-1 1 0", "-2 1", "900000000 1", "left 1", "so:\n-1, 1"]
    steps = [play("toys/buttons-v0", [reply])[0] for reply in replies]
    assert [s.info.get("invalid_action", "") != "" for s in steps] == [True] * 5 + [False]
    assert steps[-1].reward == 1.0


def test_nested_observations():
    lines = first("toys/nested-v0")[-1]["content"].split("\n")
    assert [line.partition(":")[0] for line in lines] == ["bits", "grid", "pair"]
    grid = json.loads(lines[1].partition(": ")[2])
    assert [len(row) for row in grid] == [2, 2]


def test_a_space_of_the_environments_own_is_a_part_and_its_actions_have_names():
    messages = first("toys/grid-v0")
    assert messages[0]["content"] == "Reply with one action: left, right."
    lines = messages[1]["content"].split("\n")
    assert lines[0] == "mission: go to the red ball"
    assert np.shape(json.loads(lines[1].partition(": ")[2])) == (7, 7, 3)


def test_the_drawing_takes_the_place_of_an_observation_too_large_for_words():
    with pytest.raises(ConfigError, match=r'1659 numbers, at most 1024 .* render="ansi"'):
        SPEC.make(id="toys/drawn-v0")
    assert first("toys/drawn-v0", render="ansi")[1]["content"] == "a drawing"


def test_a_graph_is_a_line_a_part():
    assert "nodes: " in first("toys/graphs-v0")[-1]["content"]


@cases(
    "options, problem",
    [
        ({}, "gymnasium:FrozenLake-v1"),
        ({"id": "FrozenLac-v1"}, "FrozenLac"),
        ({"id": "FrozenLake-v1", "slippery": 1}, "slippery"),
        ({"id": "toys/steering-v0"}, "allowed: Discrete, Text"),
        ({"id": "toys/pictures-v0"}, "12288 numbers"),
        ({"id": "FrozenLake-v1", "actions": ["a", "b"]}, "expected 4 different names"),
        ({"id": "FrozenLake-v1", "actions": ["a", "b", "c", " A"]}, "expected 4 different names"),
        ({"id": "toys/speller-v0", "actions": ["a"]}, "names are for a Discrete"),
        ({"id": "FrozenLake-v1", "render": "human"}, 'allowed: "ansi"'),
        ({"id": "FrozenLake-v1", "executor": "proces"}, "did you mean process"),
    ],
    ids=range(10),
)
def test_what_cannot_be_played_is_a_config_error(options, problem):
    with pytest.raises(ConfigError, match=problem):
        SPEC.make(**options)


def test_names_of_ones_own():
    names = ["west", "south", "east", "north"]
    (step,) = play("FrozenLake-v1", ["I go **East**."], is_slippery=False, actions=names)
    assert step.observation[0]["content"] == "Row 1, column 2."


def test_kwargs_go_to_gymnasium():
    user = first("FrozenLake-v1", kwargs={"map_name": "8x8"})[-1]
    assert "SFFFFFFF\n" in user["content"]


def test_in_a_thread_or_process_it_is_the_same():
    inline, *others = (
        play("Taxi-v4", ["south", "pickup"], executor=where)
        for where in ("inline", "thread", "process")
    )
    assert others == [inline, inline]


def test_tasks_of_a_process_are_the_same():
    ids = [
        [SPEC.task_source("train", seed=3, id="Taxi-v4", executor=where)[i].id for i in range(3)]
        for where in ("inline", "process")
    ]
    assert ids[0] == ids[1]


def test_a_task_is_a_seed():
    source = SPEC.task_source("train", seed=3, id="Taxi-v4")
    env = SPEC.make(id="Taxi-v4")
    found = [asyncio.run(env.reset(options={"task": source[i]})) for i in (0, 1, 0)]
    assert found[0] == found[2] != found[1]
    assert found[0][0] == first("Taxi-v4", seed=source[0].seed)
    assert found[0][1]["task_id"] == source[0].id


def test_a_task_of_another_kind_is_refused():
    with pytest.raises(EnvError, match="expected a Task"):
        asyncio.run(SPEC.make(id="Taxi-v4").reset(options={"task": 3}))


def test_other_reset_options_are_gymnasiums():
    env = SPEC.make(id="CartPole-v1")
    messages, _ = asyncio.run(env.reset(seed=1, options={"low": 0.1, "high": 0.1}))
    assert messages[-1]["content"] == "0.1, 0.1, 0.1, 0.1"


def test_the_id_is_an_argument():
    assert SPEC.argument == "id"
    assert EnvSpec.from_json(SPEC.to_json()) == SPEC


def test_close_is_idempotent():
    env = SPEC.make(id="FrozenLake-v1")
    asyncio.run(env.close())
    asyncio.run(env.close())


def opening(id: str, seed: int) -> str:
    return json.dumps(GymnasiumEnv(id=id).reset(seed=seed)[0])


@pytest.mark.slow
@pytest.mark.parametrize("id", ["Taxi-v4", "Blackjack-v1"])
def test_no_held_out_task_begins_like_a_training_task(id):
    begun = {
        split: {opening(id, SPEC.task_source(split, seed=1, id=id)[i].seed) for i in range(40)}
        for split in ("train", "eval")
    }
    assert min(map(len, begun.values())) > 5
    assert not begun["train"] & begun["eval"]


def test_where_all_begin_alike_seeds_are_what_is_held_out():
    train, held_out = (
        {SPEC.task_source(split, seed=1, id="FrozenLake-v1")[i].seed for i in range(40)}
        for split in ("train", "eval")
    )
    assert not train & held_out


def test_too_few_beginnings_are_an_error():
    source = OpeningTasks(lambda seed: "the same", "eval", seed=0)
    other = OpeningTasks(lambda seed: "the same", "train", seed=0)
    with pytest.raises(ConfigError, match="too few beginnings"):
        _ = source[0], other[0]
