"""Sandboxes that die in the middle of an episode: it is played again, never a reward of 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from arl_agents.react import React
from arl_envs.harbor.env import HarborEnv

from agentgym_rl import Sandbox
from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Outcome, Trajectory
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionSampling
from agentgym_rl.gym import Services, spec
from agentgym_rl.gym.specs import wrapped
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import Player, play_with_retries
from agentgym_rl.rollout.episode import Deadlines
from benchmarks._kills import Watched, kill_sandbox
from tests.contracts.sandboxes import Opened, opened
from tests.exhaustive import WITH_DOCKER

from .kit import written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LIMIT_S = 240.0
WORK = "echo 42 > answer.txt; until [ -e go ]; do sleep 0.05; done"
GO = {"go": b""}
NAMES = ["local", pytest.param("docker", marks=() if WITH_DOCKER else pytest.mark.skip("docker"))]


@pytest.fixture(scope="module", params=NAMES)
def world(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with opened(request.param) as found:
        found.needs("images", "shell")
        yield found


def call(command: str) -> str:
    written_call = {"name": "bash", "arguments": {"command": command}}
    return f"<tool_call>\n{json.dumps(written_call)}\n</tool_call>"


class Dying(Watched):
    """A backend of one episode, whose sandboxes with some numbers die before they are used, and
    others in the middle of the agent's command; the agent's last sandbox lets it end."""

    def __init__(self, world: Opened, *, unused: Collection[int], used: Collection[int]) -> None:
        super().__init__(world.backend)
        self._unused, self._used = unused, used

    async def create(self, **options: Any) -> Sandbox:
        made = await super().create(**options)
        if len(self.sandboxes) - 1 in self._unused:
            await self._kill(made)
        return made

    async def work(self, number: int) -> None:
        """Kill the agent's sandbox with this number once its program runs, or let it go on."""
        sandbox = await self.sandbox(number)
        async with asyncio.timeout(LIMIT_S):
            while not await self._works(sandbox):  # noqa: ASYNC110 - files send no events
                await asyncio.sleep(0.05)
        if number in self._used:
            await self._kill(sandbox)
        else:
            await sandbox.write_files(GO)

    async def _works(self, sandbox: Sandbox) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return await sandbox.read_file("answer.txt") == b"42\n"
        return False

    async def _kill(self, sandbox: Sandbox) -> None:
        await asyncio.to_thread(kill_sandbox, sandbox, random.Random(0))


async def played(world: Opened, source: str, dying: Dying, agents: Sequence[int]) -> Trajectory:
    """Play a task; the sandboxes `agents` are the agent's, one in each attempt that gets so far
    that a program runs."""
    chat = ChatFormat.load(BUNDLED)

    def reply(prompt: Sequence[int]) -> Sequence[int]:
        said = "Done." if "<tool_response>" in chat.text(prompt) else call(WORK)
        return chat.encode(f"{said}<|im_end|>")

    engine = ScriptedEngine(reply)
    gateway = Gateway(engine, chat, config=GatewayConfig(), model_name="m", max_model_len=4096)
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(gateway.serve())
        player = Player(
            lambda: wrapped(HarborEnv(source=source), spec("harbor-v0", kind="env")),
            React,
            gateway,
            await stack.enter_async_context(AgentClients(url)),
            "m",
            Deadlines(episode_s=LIMIT_S, turn_s=LIMIT_S),
            Services(sandboxes=dying),  # pyright: ignore[reportArgumentType]
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for number in agents:
            tasks.create_task(dying.work(number))
        return await play_with_retries(
            player,
            HarborEnv.task_source("train", seed=0, source=source)[0],
            episode_id="e",
            group_id="g",
            sampling=SessionSampling(max_tokens=256, temperature=1.0),
            max_retries=1,
        )


@pytest.mark.parametrize(
    ("unused", "used", "agents"),
    [
        pytest.param([0], [], [1], id="before the first command"),
        pytest.param([], [0], [0, 1], id="in a command"),
        pytest.param([1], [], [0, 2], id="before the tests"),
    ],
)
def test_an_episode_whose_sandbox_dies_is_played_again(
    world: Opened, tmp_path: Path, unused: list[int], used: list[int], agents: list[int]
) -> None:
    source = str(written(tmp_path / "a"))
    dying = Dying(world, unused=unused, used=used)
    found = world.run(played(world, source, dying, agents), LIMIT_S)
    assert (found.outcome, found.reward, found.num_turns) == (Outcome.COMPLETED, 1.0, 2), found
    assert len(dying.sandboxes) == (4 if unused == [1] else 3)


@pytest.mark.parametrize(("dead", "agents"), [([0, 1], []), ([1, 3], [0, 2])])
def test_sandboxes_that_die_each_time_are_no_reward_of_0(
    world: Opened, tmp_path: Path, dead: list[int], agents: list[int]
) -> None:
    source = str(written(tmp_path / "a"))
    found = world.run(played(world, source, Dying(world, unused=dead, used=[]), agents), LIMIT_S)
    assert found.outcome is Outcome.INFRA_ERROR, found
    assert not found.outcome.trains
