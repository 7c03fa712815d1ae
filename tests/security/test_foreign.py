"""Tasks of strangers, and cheats in each of them: none is paid, and every solution is.

A few plays of each task, in a local sandbox; with `ARL_EXHAUSTIVE=1` every cheat in every task, and
in containers where docker is required (`make test-docker`). `ARL_CASE=TEXT` plays those that have
the text in their name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from arl_envs.harbor.env import HarborEnv
from foreign import CHEATS, TASKS, written

from agentgym_rl.gym import SandboxBackend, Step
from tests.contracts.sandboxes import Opened, opened
from tests.exhaustive import EXHAUSTIVE, WITH_DOCKER

pytestmark = pytest.mark.slow
PLACES = ["local", *(["docker"] if WITH_DOCKER else [])]
EVERY = 1 if EXHAUSTIVE else 120
"""One of so many plays is made, and the solution of its task."""
DONE = {"role": "assistant", "content": "Done."}


@pytest.fixture(scope="module", params=PLACES)
def world(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param) as found:
        found.needs("images", "shell")
        yield found


async def played(source: str, sandboxes: SandboxBackend, command: str | None) -> Step:
    """The last step after a command; without one, after the solution."""
    env = HarborEnv(source=source, split_by="all", memory_mb=512, disk_mb=128)
    try:
        (task,) = HarborEnv.task_source("train", seed=1, source=source, split_by="all")
        await env.reset(options={"task": task, "sandboxes": sandboxes})
        call = {"name": "bash", "arguments": {"command": command}}
        cheat = {"tool_calls": [{"id": "c", "type": "function", "function": call}]}
        cheating = [{"role": "assistant", "content": None, **cheat}, DONE]
        for message in (env.solve() or ()) if command is None else cheating:
            step = await env.step(message)
            if step.terminated or step.truncated:
                break
        return step
    finally:
        await env.close()


async def is_paid(source: str, sandboxes: SandboxBackend) -> None:
    step = await played(source, sandboxes, None)
    assert (step.reward, step.info["verifier"]) == (1.0, "ok"), step.info


async def is_not_paid(source: str, sandboxes: SandboxBackend, command: str) -> None:
    step = await played(source, sandboxes, command)
    assert step.reward == 0.0, step.info


@pytest.mark.timeout(3500)
def test_no_cheat_is_paid(
    world: Opened, request: pytest.FixtureRequest, subtests: pytest.Subtests, tmp_path: Path
) -> None:
    in_docker = request.node.callspec.params["world"] == "docker"  # Python and bash alone
    plays = {}
    for at, (name, task) in enumerate(TASKS.items()):
        if task.needs and (in_docker or not shutil.which(task.needs)):
            continue
        source = written(task, tmp_path / str(at))
        cheats = {"nothing": "true", **CHEATS}
        chosen = [
            (what, command.replace("@WORK@", task.work))
            for number, (what, command) in enumerate(cheats.items())
            if (number + 7 * at) % EVERY == 0 and not (number and task.runs_answer)
        ]
        if chosen:
            plays[f"{name}: the solution"] = partial(is_paid, source, world.backend)
        for what, command in chosen:
            plays[f"{name}: {what}"] = partial(is_not_paid, source, world.backend, command)
    world.play_each(subtests, plays, case_s=300.0)


def test_the_suite_is_large() -> None:
    assert len(TASKS) >= 40
    assert len(CHEATS) >= 30
