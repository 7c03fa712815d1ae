"""Episodes and conversations on a gateway, with a scripted engine or a real small model."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from arl_embedded.section import EmbeddedEngineConfig

from agentgym_rl.core import Sampler, Trajectory
from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gym import Agent
from agentgym_rl.models import resolve_model
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.rollout import Player
from agentgym_rl.rollout.episode import Deadlines
from tests.exhaustive import REQUIRED
from tests.kit.scripted import SAMPLING, Scripted, gateway_for

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # importing it downloads one


def required(module: str) -> Any:
    """An agent framework; skips without, fails where ARL_REQUIRE names agents."""
    if importlib.util.find_spec(module) is None:
        wanted = "agents" in REQUIRED
        (pytest.fail if wanted else pytest.skip)(f"{module} is not installed (make test-agents)")
    return importlib.import_module(module)


@pytest.fixture(scope="session")
def need() -> Callable[[str], Any]:
    return required


@pytest.fixture
def collected() -> Iterator[None]:
    """Frameworks keep HTTP clients that nobody closes: they warn as they are collected, here and
    not in the middle of another test."""
    yield
    gc.collect()


@pytest.fixture
def node_program(tmp_path: Path) -> Callable[[Path], list[str]]:
    """The command line of a program in Node.js, with the packages of examples/node_agent."""
    modules = os.environ.get("ARL_NODE_MODULES", "")
    if not modules or shutil.which("node") is None:
        wanted = "agents" in REQUIRED
        why = "node is missing, or ARL_NODE_MODULES names no folder (make test-agents)"
        (pytest.fail if wanted else pytest.skip)(why)
    (tmp_path / "node_modules").symlink_to(modules)
    return lambda file: ["node", shutil.copy(file, tmp_path)]


@pytest.fixture(scope="session")
def chat() -> ChatFormat:
    return ChatFormat.load(BUNDLED)


@pytest.fixture(scope="session")
def scripted(chat: ChatFormat) -> Scripted:
    return Scripted(chat)


@contextlib.asynccontextmanager
async def small_model(name: str) -> AsyncIterator[tuple[Sampler, ChatFormat]]:
    """The embedded engine, over HTTP as in a run, with a bundled model."""
    from arl_embedded.app import App
    from arl_embedded.engine import EmbeddedEngine
    from arl_embedded.model import load_model

    from agentgym_rl.engines import HttpEngine
    from agentgym_rl.runtime import serving

    folder = resolve_model(name)
    config = EmbeddedEngineConfig(device="cpu", max_model_len=2048)
    model = load_model(folder, config)
    engine = EmbeddedEngine(
        model, model_dir=folder, config=config, seed=1, weight_version="0.0", journal=None
    )
    app = App(engine, served_model_name="m")
    async with serving(app, host="127.0.0.1", port=0) as url, engine.running():
        client = HttpEngine(url, timeout_s=120)
        try:
            yield client, ChatFormat.load(folder)
        finally:
            await client.close()


@dataclass
class Small:
    """Episodes of a registered environment, played by an agent and a bundled model."""

    def play(
        self, agent: Agent, env: str, *, episodes: int, model: str | None = None
    ) -> list[Trajectory]:
        from agentgym_rl.gym import spec

        async def main() -> list[Trajectory]:
            found: list[Trajectory] = []
            tasks = spec(env).task_source("train", seed=3)
            async with (
                small_model(model or f"bundled/{env}") as (engine, chat),
                gateway_for(engine, chat, max_model_len=2048) as (gateway, clients),
            ):
                limits = Deadlines(episode_s=240, turn_s=120)
                player = Player(
                    spec(env).maker(),
                    lambda: agent,
                    gateway,
                    clients,
                    "m",
                    limits,  # type: ignore[attr-defined]
                )
                for number in range(episodes):
                    found.append(
                        await player.play(
                            tasks[number], episode_id=f"e{number}", group_id="g", sampling=SAMPLING
                        )
                    )
            return found

        return asyncio.run(main())


@pytest.fixture(scope="session")
def small() -> Small:
    return Small()
