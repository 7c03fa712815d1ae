"""Each reward hack in the real environment on a real sandbox: never paid, honestly judged.

After every third, the reference solution of another task is accepted in the same sandboxes. Every
second hack is played under reward "fraction", the others under "all". With ARL_EXHAUSTIVE=1 each is
played under both, and the reference solution after each. `ARL_CASE=TEXT` plays those that have the
text in their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest
from arl_envs.code.env import CodeEnv
from arl_envs.code.generated import solve
from hacks import CLASSES, HACKS, Hack, words
from hacks.hack import submits
from hacks.tasks import NUM_HIDDEN, problem_of, task_of

from agentgym_rl.core import Task
from agentgym_rl.gym import SandboxBackend, Step
from tests.contracts.sandboxes import Opened, opened
from tests.exhaustive import EXHAUSTIVE, WITH_DOCKER

pytestmark = pytest.mark.slow
REWARDS = ("all", "fraction")
IN_CONTAINERS = ("clocks", "exits", "searches", "state")
"""Classes whose hacks go for the sandbox; the others never meet it, and each costs containers."""
PLACES = [("local", name) for name in CLASSES]
PLACES += [("docker", name) for name in IN_CONTAINERS if WITH_DOCKER]


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param) as found:
        yield found


async def played(task: Task, says, reward: str, sandboxes: SandboxBackend) -> Step:
    """The last step of an episode."""
    env = CodeEnv(reward=reward, num_hidden=NUM_HIDDEN)
    await env.reset(options={"task": task, "sandboxes": sandboxes})
    *before, last = says(problem_of(task))
    for message in before:
        step = await env.step(message)
        assert (step.reward, step.terminated) == (0.0, False)
    return await env.step(last)


async def is_not_paid(
    hack: Hack, reward: str, sandboxes: SandboxBackend, *, honest_after: bool
) -> None:
    step = await played(task_of(hack), hack.says, reward, sandboxes)
    assert (step.reward, step.terminated) == (0.0, True)
    assert step.info["verifier"] in hack.verdicts, step.info
    assert re.search(hack.detail, step.info["verifier_detail"]), step.info
    if honest_after:
        await is_honest(len(hack.name), sandboxes)


async def is_honest(seed: int, sandboxes: SandboxBackend) -> None:
    task = CodeEnv.task_source("train", seed=seed)[0]
    honest = await played(task, lambda _: solve(task), "fraction", sandboxes)
    assert (honest.reward, honest.info["verifier"]) == (1.0, "accepted")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("world", "kind"), PLACES, indirect=["world"], ids=map("-".join, PLACES), scope="module"
)
def test_no_hack_is_paid(world: Opened, kind: str, subtests: pytest.Subtests) -> None:
    plays = {
        f"{hack.name} {reward}": partial(
            is_not_paid, hack, reward, world.backend, honest_after=EXHAUSTIVE or number % 3 == 0
        )
        for number, hack in enumerate(CLASSES[kind])
        for reward in (REWARDS if EXHAUSTIVE else [REWARDS[number % 2]])
    }
    world.play_each(subtests, plays)


RIGHT = [
    *((f"text-{name}", "text", "numbers", words.text_code(code))
      for name, code in words.RIGHT_SAID.items()),
    *((f"call-{name}", "call", "numbers", words.call_code(code))
      for name, code in words.RIGHT_RETURNED.items()),
    *((f"nested-{name}", "call", "lists", words.call_code(code))
      for name, code in words.RIGHT_NESTED.items()),
]  # fmt: skip


async def is_right(hack: Hack, reward: str, sandboxes: SandboxBackend) -> None:
    step = await played(task_of(hack), hack.says, reward, sandboxes)
    assert (step.reward, step.info["verifier"]) == (1.0, "accepted")


@pytest.mark.parametrize("world", ["local"], indirect=True, scope="module")
def test_what_is_equal_is_right(world: Opened, subtests: pytest.Subtests) -> None:
    plays = {
        f"{name} {reward}": partial(
            is_right, Hack(name, form, frozenset(), submits(code), task=made), reward, world.backend
        )
        for name, form, made, code in RIGHT
        for reward in REWARDS
    }
    world.play_each(subtests, plays)


def test_every_hack_has_a_class() -> None:
    assert sum(map(len, CLASSES.values())) == len(HACKS) > 500
