"""Conversations and episodes on a gateway whose model gives scripted replies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import Sampler, Task, Trajectory
from agentgym_rl.engines.scripted import ScriptedEngine
from agentgym_rl.gateway import AgentClients, ChatFormat, Gateway, SessionRecord, SessionSampling
from agentgym_rl.gym import Agent, Env, EnvSpec
from agentgym_rl.gym.specs import wrapped
from agentgym_rl.rollout import Player
from agentgym_rl.rollout.episode import Deadlines

SAMPLING = SessionSampling(max_tokens=256, temperature=1.0, seed=5)


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
    """A model whose replies are given, in their order."""

    chat: ChatFormat

    def engine(self, replies: list[str]) -> ScriptedEngine:
        return ScriptedEngine([self.chat.encode(f"{reply}<|im_end|>") for reply in replies])

    def talk(
        self, converse: Callable[[Any], Awaitable[Any]], replies: list[Any]
    ) -> tuple[Any, SessionRecord, ScriptedEngine]:
        """Return the result of `converse(client)`, the session's record, and the engine."""
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
        """Play an episode as a run does."""
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
