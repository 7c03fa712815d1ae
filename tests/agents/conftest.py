"""Episodes and conversations on a gateway, with a scripted engine or a real small model."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core.engine import Sampler
from agentgym_rl.core.task import Task
from agentgym_rl.core.trajectory import Trajectory
from agentgym_rl.engines.embedded.section import EmbeddedEngineConfig
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway.client import AgentClients
from agentgym_rl.gateway.server.gateway import Gateway
from agentgym_rl.gateway.session.session import SessionRecord, SessionSampling
from agentgym_rl.gateway.template.chat_format import ChatFormat
from agentgym_rl.gym.agent import Agent
from agentgym_rl.gym.env import Env
from agentgym_rl.gym.specs import EnvSpec, wrapped
from agentgym_rl.models.resolve import BUNDLED, resolve_model
from agentgym_rl.rollout.episode import Deadlines, Player
from tests.exhaustive import REQUIRED

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # importing it downloads one
SAMPLING = SessionSampling(max_tokens=256, temperature=1.0, seed=5)


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


@contextlib.asynccontextmanager
async def gateway_for(
    engine: Sampler, chat: ChatFormat, *, max_model_len: int
) -> AsyncIterator[tuple[Gateway, AgentClients]]:
    config = GatewayConfig()
    gateway = Gateway(engine, chat, config=config, model_name="m", max_model_len=max_model_len)
    async with gateway.serve() as url, AgentClients(url) as clients:
        yield gateway, clients


@dataclass
class Scripted:
    """A model that says what it is told to."""

    chat: ChatFormat

    def engine(self, replies: list[str]) -> ScriptedEngine:
        return ScriptedEngine([self.chat.encode(f"{reply}<|im_end|>") for reply in replies])

    def talk(
        self, converse: Callable[[Any], Awaitable[Any]], replies: list[Any]
    ) -> tuple[Any, SessionRecord, ScriptedEngine]:
        """What `converse(client)` returns, the session's record, and the engine."""
        engine = self.engine(replies)

        async def main() -> tuple[Any, SessionRecord]:
            async with gateway_for(engine, self.chat, max_model_len=2048) as (gateway, clients):
                session = gateway.open_session(sampling=SAMPLING, session_id="e")
                found = await converse(clients.for_session(session))
                return found, gateway.close_session(session)

        return *asyncio.run(main()), engine

    def play(
        self,
        agent: Agent,
        replies: list[Any],
        *,
        env: Callable[[], Env],
        episode_s: float = 200.0,
        script: Any = None,
    ) -> Trajectory:
        """An episode as a run plays it."""
        engine = ScriptedEngine(script) if script is not None else self.engine(replies)

        async def main() -> Trajectory:
            async with gateway_for(engine, self.chat, max_model_len=2048) as (gateway, clients):
                spec = EnvSpec(id="e", entry_point="", step_timeout_s=100)
                made = lambda: wrapped(env(), spec)  # noqa: E731
                limits = Deadlines(episode_s=episode_s, turn_s=100)
                player = Player(made, lambda: agent, gateway, clients, "m", limits)
                return await player.play(
                    Task("t", 7), episode_id="e", group_id="g", sampling=SAMPLING
                )

        return asyncio.run(main())


@pytest.fixture(scope="session")
def scripted(chat: ChatFormat) -> Scripted:
    return Scripted(chat)


@contextlib.asynccontextmanager
async def small_model(name: str) -> AsyncIterator[tuple[Sampler, ChatFormat]]:
    """The embedded engine, over HTTP as in a run, with a bundled model."""
    from agentgym_rl.engines.client.client import HttpEngine
    from agentgym_rl.engines.embedded.app import App
    from agentgym_rl.engines.embedded.engine import EmbeddedEngine
    from agentgym_rl.engines.embedded.model import load_model
    from agentgym_rl.runtime.http_server import serving

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
        from agentgym_rl.gym.registry import spec

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
