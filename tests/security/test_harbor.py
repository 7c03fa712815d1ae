"""Each exploit of the harbor environment in a real sandbox: never paid; the honest agent is.

`ARL_CASE=TEXT` plays those that have the text in their name; `ARL_EXHAUSTIVE=1` plays all in
machines of the fake of e2b and in containers, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from arl_envs.harbor.env import HarborEnv
from arl_envs.harbor.tasks import make_task
from harbor_exploits import CLASSES, EXPLOITS, SEARCHES, Exploit, target_of

from agentgym_rl.core import InfraError, Task
from agentgym_rl.gym import SandboxBackend, Step
from tests.contracts.sandboxes import Opened, opened
from tests.envs.harbor.stand_in import Place, shell
from tests.exhaustive import EXHAUSTIVE, WITH_DOCKER

pytestmark = pytest.mark.slow
IN_THE_HARNESS = ("objects", "exits", "patches")
"""The classes that never meet the sandbox: in containers they are played with ARL_EXHAUSTIVE=1."""
SAMPLED = {} if EXHAUSTIVE else {"e2b-fake": 12}
"""In a machine of E2B, for which namespaces stand in, one of so many is played."""
PLACES = [("local", name) for name in CLASSES]
PLACES += [("e2b-fake", name) for name in CLASSES if EXHAUSTIVE or name not in IN_THE_HARNESS]
PLACES += [
    ("docker", name)
    for name in CLASSES
    if WITH_DOCKER and (EXHAUSTIVE or name not in IN_THE_HARNESS)
]
EXPLOIT_S = 400.0
DONE = {"role": "assistant", "content": "Done."}
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


async def played(
    task: Task, sandboxes: SandboxBackend, commands: Sequence[str] | None = None
) -> Step:
    """The last step of an episode with these commands; without any, of the solution."""
    env = HarborEnv(source="bugs", memory_mb=512, disk_mb=128, processes=64)
    try:
        await env.reset(options={"task": task, "sandboxes": sandboxes})
        said = env.solve() if commands is None else [*map(calling, count(), commands), DONE]
        for message in said or ():
            step = await env.step(message)
            if step.terminated or step.truncated:
                break
        return step
    finally:
        await env.close()


async def is_not_paid(
    exploit: Exploit, number: int, sandboxes: SandboxBackend, *, honest_after: bool
) -> None:
    task = task_of(number)
    try:
        step = await played(task, sandboxes, exploit.commands(target_of(make_task(task))))
    except InfraError:
        if not exploit.may_lose:
            raise
    else:
        assert step.reward == 0.0, step.info
        assert step.info["verifier"] in UNPAID, step.info
    if honest_after:
        await is_paid(number, sandboxes)


async def is_paid(number: int, sandboxes: SandboxBackend) -> None:
    step = await played(task_of(number), sandboxes)
    assert (step.reward, step.info["verifier"]) == (1.0, "ok"), step.info


@pytest.mark.timeout(3500)
@pytest.mark.parametrize(
    ("world", "kind"), PLACES, indirect=["world"], ids=map("-".join, PLACES), scope="module"
)
def test_no_exploit_is_paid(
    world: Opened, kind: str, request: pytest.FixtureRequest, subtests: pytest.Subtests
) -> None:
    every = SAMPLED.get(request.node.callspec.params["world"], 1)
    plays = {
        exploit.name: partial(
            is_not_paid, exploit, number % 8, world.backend, honest_after=number % (4 * every) == 0
        )
        for number, exploit in enumerate(CLASSES[kind])
        if number % every == 0
    }
    world.play_each(subtests, plays, case_s=EXPLOIT_S)


@pytest.mark.parametrize("number", range(8))
def test_a_search_that_finds_the_cases_would_be_paid(number: int, tmp_path: Path) -> None:
    made = make_task(task_of(number))
    place, cases = Place(tmp_path / "place", made), tmp_path / "cases.json"
    cases.write_bytes(made.tests["cases.json"])
    (search,) = SEARCHES[0].commands(target_of(made))
    assert shell(search.replace("/tests/cases.json", str(cases)), place.app) == ""
    assert place.verify()["reward"] == 1.0


def test_the_suite_is_large_and_its_names_are_its_own() -> None:
    names = [exploit.name for exploit in EXPLOITS]
    assert len(set(names)) == len(names) >= 60
