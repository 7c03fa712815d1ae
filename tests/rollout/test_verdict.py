"""What a verifier said, and the parts of the reward, are recorded for people to read."""

import asyncio

import msgspec

from agentgym_rl.core import Outcome, Task, Trajectory
from agentgym_rl.gym import Env, Step
from agentgym_rl.rollout import EpisodeEnv
from agentgym_rl.rollout.episode import MAX_VERDICT
from tests.kit.cases import cases


class InfoEnv(Env):
    """An environment whose steps have these infos, in order."""

    def __init__(self, *infos: dict) -> None:
        self._infos = iter(infos)

    async def reset(self, *, seed=None, options=None):
        return [], {}

    async def step(self, action):
        return Step([], 0.0, False, False, next(self._infos))


def verdict(*infos: dict) -> str:
    return played(*infos).verdict


def played(*infos: dict) -> EpisodeEnv:
    async def play() -> EpisodeEnv:
        env = EpisodeEnv(InfoEnv(*infos), Task("t", 0, data={}))
        await env.start()
        for _ in infos:
            await env.step({"role": "assistant", "content": ""})
        return env

    return asyncio.run(play())


@cases(
    "infos, parts",
    [
        ([{}], {}),
        ([{"reward_components": None}], {}),
        ([{"reward_components": {"a": 1, "b": None, "c": "x"}}], {"a": 1.0}),
        (
            [{"reward_components": {"a": 0.5, "b": True}}, {"reward_components": {"a": 1.0}}],
            {"a": 1.0, "b": 1.0},
        ),
    ],
)
def test_the_last_number_of_each_part_of_the_reward_counts(infos, parts):
    assert played(*infos).reward_parts == parts


@cases(
    "infos, said",
    [
        ([{}], ""),
        ([{"verifier": "ok"}], "ok"),
        ([{"verifier": "wrong", "verifier_detail": "41, not 42"}], "wrong: 41, not 42"),
        ([{"verifier": "timeout"}, {}], "timeout"),
        ([{"verifier": "wrong"}, {"verifier": "ok", "verifier_detail": ""}], "ok"),
    ],
)
def test_the_last_verdict_counts(infos, said):
    assert verdict(*infos) == said


def test_a_long_one_is_cut():
    assert len(verdict({"verifier": "wrong", "verifier_detail": "x" * 5000})) == MAX_VERDICT


def test_it_is_in_the_record_and_not_in_old_ones():
    lone = Trajectory("e", "g", "t", Outcome.COMPLETED, 0.5, [], verdict="wrong: \ud800")
    assert Trajectory.unpack(lone.pack()).verdict == "wrong: \ufffd"
    fields = msgspec.msgpack.decode(lone.pack())
    del fields["verdict"]
    assert Trajectory.unpack(msgspec.msgpack.encode(fields)).verdict == ""


def test_the_parts_of_the_reward_are_in_the_record_and_not_in_old_ones():
    parts = {"correct": 1.0, "style": 0.25}
    record = Trajectory("e", "g", "t", Outcome.COMPLETED, 0.5, [], reward_parts=parts)
    assert Trajectory.unpack(record.pack()).reward_parts == parts
    fields = msgspec.msgpack.decode(record.pack())
    del fields["reward_parts"]
    assert Trajectory.unpack(msgspec.msgpack.encode(fields)).reward_parts == {}
