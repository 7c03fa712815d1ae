"""Each exploit of the harbor environment in a real sandbox: never paid; the honest agent is.

`ARL_CASE=TEXT` plays those that have the text in their name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from arl_envs.harbor import oracle
from arl_envs.harbor.config import read_config
from arl_envs.harbor.env import HarborEnv
from arl_envs.harbor.tasks import make_task
from harbor_exploits import CLASSES, EXPLOITS, Exploit, target_of

from agentgym_rl.core.errors import InfraError
from agentgym_rl.core.task import Task
from agentgym_rl.gym.env import Step
from agentgym_rl.gym.sandbox import SandboxBackend
from tests.contracts.sandboxes import Opened, opened
from tests.exhaustive import EXHAUSTIVE, WITH_DOCKER
from tests.kit.cases import chosen

pytestmark = pytest.mark.slow
IN_THE_HARNESS = ("objects", "exits", "patches")
"""The classes that never meet the sandbox: in containers they are played with ARL_EXHAUSTIVE=1."""
PLACES = [("local", name) for name in CLASSES]
PLACES += [
    ("docker", name)
    for name in CLASSES
    if WITH_DOCKER and (EXHAUSTIVE or name not in IN_THE_HARNESS)
]
AT_ONCE = 3
EXPLOIT_S = 400.0
UNPAID = ("wrong", "tampered", "timeout", "crash", "no_reward", "too_large")


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param) as found:
        found.needs("images", "shell")
        yield found


def task_of(number: int) -> Task:
    return HarborEnv.task_source("train", seed=5, source="bugs", level=1)[number]


def calling(number: int, command: str) -> dict:
    function = {"name": "bash", "arguments": {"command": command, "timeout_s": 20}}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def played(task: Task, messages: list[dict], sandboxes: SandboxBackend) -> Step:
    """The last step of an episode."""
    env = HarborEnv(source="bugs", memory_mb=512, disk_mb=128, processes=64)
    try:
        await env.reset(options={"task": task, "sandboxes": sandboxes})
        for message in messages:
            step = await env.step(message)
            if step.terminated or step.truncated:
                return step
        return await env.step({"role": "assistant", "content": "Done."})
    finally:
        await env.close()


async def is_not_paid(exploit: Exploit, number: int, sandboxes: SandboxBackend) -> None:
    task = task_of(number)
    commands = exploit.commands(target_of(make_task(task)))
    try:
        step = await played(task, [*map(calling, range(9), commands)], sandboxes)
    except InfraError:
        if not exploit.may_lose:
            raise
        return
    assert step.reward == 0.0, step.info
    assert step.info["verifier"] in UNPAID, step.info


async def is_paid(number: int, sandboxes: SandboxBackend) -> None:
    task = task_of(number)
    harbor = make_task(task)
    messages = oracle.messages_of(harbor, read_config(harbor.config, name=harbor.name))
    step = await played(task, [dict(each) for each in messages or ()], sandboxes)
    assert (step.reward, step.info["verifier"]) == (1.0, "ok"), step.info


async def all_of(kind: str, sandboxes: SandboxBackend) -> dict[str, str]:
    """The failure of each exploit that was paid, or could not be judged, by its name."""
    failed: dict[str, str] = {}
    room = asyncio.Semaphore(AT_ONCE)
    exploits = {exploit.name: exploit for exploit in CLASSES[kind]}

    async def one(number: int, name: str) -> None:
        async with room:
            try:
                async with asyncio.timeout(EXPLOIT_S):
                    await is_not_paid(exploits[name], number % 8, sandboxes)
                    if number % 4 == 0:
                        await is_paid(number % 8, sandboxes)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"

    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(chosen(exploits)):
            group.create_task(one(number, name))
    return failed


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("world", "kind"), PLACES, indirect=["world"], ids=map("-".join, PLACES), scope="module"
)
def test_no_exploit_is_paid(world: Opened, kind: str) -> None:
    failed = world.run(all_of(kind, world.backend), timeout_s=3500)
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())


def test_the_suite_is_large_and_its_names_are_its_own() -> None:
    names = [exploit.name for exploit in EXPLOITS]
    assert len(set(names)) == len(names) >= 60
