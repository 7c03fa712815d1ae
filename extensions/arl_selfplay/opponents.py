"""The models other than the policy that play seats (`rollout.seats`), served while a run plays:
frozen models, models at a URL, and the league."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from agentgym_rl.cluster.health import LOOK_EVERY_S
from agentgym_rl.config import ENGINES, Config, EndpointConfig, ModelConfig
from agentgym_rl.core import EngineError, WeightsError
from agentgym_rl.evaluate import EvalTarget, serving_model
from agentgym_rl.fleet import Fleet
from agentgym_rl.rollout import Player, endpoint_kind
from agentgym_rl.run import TrainingRun

from .keys import SeatKeys

log = logging.getLogger(__name__)

LEAGUE = "league"
"""The player of seats that is a past version of the policy."""


def opponents(run: TrainingRun) -> AbstractAsyncContextManager[Mapping[str, Player]]:
    """Serve the models of a run other than the policy; yield their players by name."""
    return _Opponents(run).served()


_AT_URL = "openai"
"""The kind of engine of a player at a URL."""


def _key_name() -> str:
    """Return the variable with the key of models served elsewhere; "" if it is not set."""
    name = str(ENGINES[_AT_URL].section.model_fields["api_key_env"].default)
    return name if os.environ.get(name, "").strip() else ""


def _advice(who: str) -> str:
    """Return what to check if a model served elsewhere refuses to play a seat."""
    key = "in OPENAI_API_KEY" if _key_name() else "(OPENAI_API_KEY is not set)"
    return (
        f"check the URL and the model's name of the player {who} (rollout.seats), and the key "
        f"{key}; requests have `temperature` and `max_tokens`, and no other limits"
    )


class _Opponents:
    def __init__(self, run: TrainingRun) -> None:
        self._run, self._config = run, run.config

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[Mapping[str, Player]]:
        """Serve the models other than the policy that play seats (`rollout.seats`), by player."""
        found: dict[str, Player] = {}
        index = self._config.own_engine.num_servers + self._config.eval.scheduled
        async with AsyncExitStack() as stack:
            for who in self._config.of(SeatKeys).other_models:
                config = self._config_for(who)
                if isinstance(config.engine, EndpointConfig):
                    endpoint = endpoint_kind(config.engine)
                    serving = endpoint.serving(config, config.engine, advice=_advice(who))
                    found[who] = await stack.enter_async_context(serving)
                    continue
                serving = serving_model(
                    EvalTarget(config),
                    self._run.progress,
                    first_index=index,
                    logs=self._run.run_dir / "logs",
                    forks=self._run.processes.forks,
                )
                fleet, found[who] = await stack.enter_async_context(serving)
                index += 1
                if who == LEAGUE:
                    await stack.enter_async_context(self._drawing(fleet))
            yield found

    def _config_for(self, who: str) -> Config:
        """Return the configuration with which another model than the policy is served."""
        config = self._config
        gateway = config.gateway.model_copy(update={"port": 0})
        config = config.model_copy(update={"gateway": gateway})
        kind, _, place = who.partition(":")
        if kind == "url":
            url, _, name = place.partition("#")
            keys = {"base_url": url, "api_key_env": _key_name()}
            engine = ENGINES[_AT_URL].section.model_validate(keys)
            return config.model_copy(update={"engine": engine, "model": ModelConfig(path=name)})
        engine = config.own_engine.model_copy(update={"num_servers": 1})
        model = config.model if kind == LEAGUE else ModelConfig(path=place)
        return config.model_copy(update={"engine": engine, "model": model})

    @asynccontextmanager
    async def _drawing(self, league: Fleet) -> AsyncGenerator[None]:
        """Let the league draw its versions while the context is open."""
        async with asyncio.TaskGroup() as tasks:
            drawing = tasks.create_task(self._draw(league), name="league")
            yield
            drawing.cancel()

    async def _draw(self, league: Fleet) -> None:
        """Give the league a past version, drawn uniformly, again and again: fictitious self-play,
        Heinrich et al. 2015 (https://proceedings.mlr.press/v37/heinrich15.html)."""
        last = -1
        while True:
            due = self._run.controller.version // self._config.of(SeatKeys).league_every
            if due != last and await self._take_past(league, due):
                last = due
            await asyncio.sleep(LOOK_EVERY_S)

    async def _take_past(self, league: Fleet, due: int) -> bool:
        """Give the league one of the versions 0 to `due` times `league_every`; return whether it
        has one."""
        every, folder = self._config.of(SeatKeys).league_every, self._run.run_dir / "weights"
        past = [n * every for n in range(due + 1) if (folder / f"v-{n * every}").exists()]
        if not past:
            return False
        version = random.Random(f"{self._config.seed}/league/{due}").choice(past)
        try:
            await league.take(version, folder / f"v-{version}")
        except (EngineError, WeightsError, TimeoutError) as error:
            log.warning("the league does not get version %d: %s", version, error)
            return False
        self._run.controller.rollout_metrics["league/version"] = float(version)
        return True
