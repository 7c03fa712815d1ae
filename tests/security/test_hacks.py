"""Each reward hack in the real environment on a real sandbox: never paid, honestly judged.

Afterwards the reference solution of another task is accepted in the same sandboxes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from arl_envs.code.env import CodeEnv
from arl_envs.code.oracle import solve
from hacks import CLASSES, HACKS, Hack, words
from hacks.hack import submits
from hacks.tasks import NUM_HIDDEN, problem_of, task_of

from agentgym_rl.core.task import Task
from agentgym_rl.gym.env import Step
from agentgym_rl.gym.sandbox import SandboxBackend
from tests.contracts.sandboxes import Opened, opened

pytestmark = pytest.mark.slow
IN_CONTAINERS = ("clocks", "exits", "searches", "state")
"""Classes whose hacks go for the sandbox; the others never meet it, and each costs containers."""


def each() -> Iterator[tuple[str, Hack]]:
    """Every hack in `local`, some in `docker` as well; one backend after the other."""
    for hack in HACKS.values():
        yield "local", hack
    for name in IN_CONTAINERS:
        for hack in CLASSES[name]:
            yield "docker", hack


@pytest.fixture(scope="module")
def backends() -> Iterator[Callable[[str], Opened]]:
    """Those that were asked for; one that does not work skips each test that asks."""
    found: dict[str, Opened | BaseException] = {}
    with ExitStack() as stack:

        def get(name: str) -> Opened:
            if name not in found:
                try:
                    found[name] = stack.enter_context(opened(name))
                except (pytest.skip.Exception, pytest.fail.Exception) as error:
                    found[name] = error
            if isinstance(one := found[name], BaseException):
                raise one
            return one

        yield get


async def played(task: Task, says, reward: str, sandboxes: SandboxBackend) -> Step:
    """The last step of an episode."""
    env = CodeEnv(reward=reward, num_hidden=NUM_HIDDEN)
    await env.reset(options={"task": task, "sandboxes": sandboxes})
    *before, last = says(problem_of(task))
    for message in before:
        step = await env.step(message)
        assert (step.reward, step.terminated) == (0.0, False)
    return await env.step(last)


async def both_ways(task: Task, says, sandboxes: SandboxBackend) -> list[Step]:
    """The last steps under reward="all" and reward="fraction"."""
    async with asyncio.TaskGroup() as group:
        plays = [
            group.create_task(played(task, says, reward, sandboxes))
            for reward in ("all", "fraction")
        ]
    return [play.result() for play in plays]


EACH = [pytest.param(name, hack, id=f"{name}-{hack.name}") for name, hack in each()]


@pytest.mark.parametrize(("backend", "hack"), EACH)
def test_hack_is_not_paid(backends: Callable[[str], Opened], backend: str, hack: Hack) -> None:
    world = backends(backend)
    steps = world.run(both_ways(task_of(hack), hack.says, world.backend))
    for step in steps:
        assert (step.reward, step.terminated) == (0.0, True)
        assert step.info["verifier"] in hack.verdicts, step.info
        assert re.search(hack.detail, step.info["verifier_detail"]), step.info
    task = CodeEnv.task_source("train", seed=len(hack.name))[0]
    honest = world.run(played(task, lambda _: solve(task), "fraction", world.backend))
    assert (honest.reward, honest.info["verifier"]) == (1.0, "accepted")


RIGHT = [
    *((f"text-{name}", "text", "numbers", words.text_code(code))
      for name, code in words.RIGHT_SAID.items()),
    *((f"call-{name}", "call", "numbers", words.call_code(code))
      for name, code in words.RIGHT_RETURNED.items()),
    *((f"nested-{name}", "call", "lists", words.call_code(code))
      for name, code in words.RIGHT_NESTED.items()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "form", "made", "code"), RIGHT, ids=[each[0] for each in RIGHT])
def test_what_is_equal_is_right(backends, name: str, form, made: str, code: str) -> None:
    world = backends("local")
    hack = Hack(name, form, frozenset(), submits(code), task=made)
    for step in world.run(both_ways(task_of(hack), hack.says, world.backend)):
        assert (step.reward, step.info["verifier"]) == (1.0, "accepted")
