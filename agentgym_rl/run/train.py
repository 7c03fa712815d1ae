"""The command `arl train`: a run whose groups are played by an agent in an environment, in this
process or in workers.

engines and trainer start ─► evaluation (version 0) ─► rollout ║ training ─► evaluation
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from agentgym_rl.cluster.forking import ForkServer
from agentgym_rl.cluster.health import LOOK_EVERY_S
from agentgym_rl.config import ENGINES, Config, EndpointConfig, ModelConfig
from agentgym_rl.core.errors import EngineError, WeightsError
from agentgym_rl.evaluate.command import serving_model
from agentgym_rl.evaluate.during_training import Evaluator
from agentgym_rl.evaluate.evaluate import EvalResult
from agentgym_rl.evaluate.folder import Asked
from agentgym_rl.fleet.fleet import Fleet
from agentgym_rl.models.fitted import fitted
from agentgym_rl.models.resolve import model_folder, resolve_paths
from agentgym_rl.report.progress import Progress
from agentgym_rl.rollout.curriculum import Draws
from agentgym_rl.rollout.endpoints import endpoint_kind
from agentgym_rl.rollout.episode import Player
from agentgym_rl.rollout.groups import FinishedGroups, OpenGroups
from agentgym_rl.rollout.player import check, env_spec, serving_policy, specimen, turns_of
from agentgym_rl.rollout.players import check_alone
from agentgym_rl.rollout.preflight import check_prompts
from agentgym_rl.rollout.producer import Producer, TaskCursor
from agentgym_rl.rollout.throughput import measuring
from agentgym_rl.storage.run_folder import record_tasks

from .opening import training
from .parts import producer_kind
from .result import Played, TrainResult
from .training import TrainingRun

log = logging.getLogger(__name__)

LEAGUE = "league"
"""The player of seats that is a past version of the policy."""


async def checked(config: Config, *, say: Callable[[str], None]) -> Config:
    """Refuse a run that cannot work, or whose prompts do not fit, before anything is started.

    Return its configuration with the defaults that fit its model. `say` gets progress messages if
    that takes long.

    Raises:
        ConfigError: see `player.check` and `preflight.check_prompts`.
    """
    await check(config)
    if config.eval.num_tasks or not config.rollout.seats:
        spec = env_spec(config.env, config.rollout)
        check_alone(spec, await specimen(spec))
    turns = await turns_of(config.env, config.agent, config.rollout)
    config = fitted(config, model_folder(config.model, config.env.id), turns=turns)
    await check_prompts(config, ("eval", "train"), say=say)
    return config


async def play_and_train(
    config: Config,
    progress: Progress,
    *,
    resume: Path | None = None,
    server: ForkServer | None = None,
) -> TrainResult:
    """Run a complete training job, or resume the one in the folder `resume`; return when it is
    finished and every process has ended."""
    config = resolve_paths(await checked(config, say=progress.phase))
    spec = env_spec(config.env, config.rollout)
    tasks = partial(spec.task_source, "train", seed=config.seed)
    async with training(
        _PlayedRun, config, progress, tasks=tasks, resume=resume, server=server
    ) as run:
        return await run.run()


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


class _PlayedRun(TrainingRun):
    @property
    def title(self) -> str:
        return f"{self.config.env.id} · {self.config.agent.id}"

    async def play(self) -> Played:
        # Rollout ends before the gateway does: no episode fails because the run ends.
        async with (
            self._opponents() as opponents,
            serving_policy(self.config, self.fleet, opponents=opponents) as player,
            measuring(player.services) as meter,
            asyncio.TaskGroup() as producers,
        ):
            evaluator = Evaluator(
                self.config,
                self.config_file,
                self.run_dir,
                self.evaluations,
                incarnation=self.recovered.incarnation,
                progress=self.progress,
                forks=self.processes.forks,
            )
            before = await self._before(player, evaluator)
            scheduled = producers.create_task(
                evaluator.run(player.services), name="evaluations on schedule"
            )
            finished = await self._train(producers, player)
            self.evaluations.close()
            after = await self._evaluate(player, evaluator, "after")
            if not scheduled.done():
                self.progress.phase("waiting for evaluations on schedule")
            await scheduled
            counts = [finished.outcomes, *(r.outcomes for r in (before, after) if r)]
            episodes = sum(sum(count.values()) for count in counts) + evaluator.num_scheduled
            pace = meter.read(episodes=episodes, others=self.fleet.mirrors.used)
        restarts = self.producer.restarts if self.producer else 0
        return Played(finished, pace, before, after, restarts)

    @asynccontextmanager
    async def _opponents(self) -> AsyncIterator[dict[str, Player]]:
        """Serve the models beside the policy that play seats (`rollout.seats`), by player."""
        found: dict[str, Player] = {}
        index = self.config.own_engine.num_servers + self.config.eval.scheduled
        async with AsyncExitStack() as stack:
            for who in self.config.rollout.other_models:
                config = self._config_of(who)
                if isinstance(config.engine, EndpointConfig):
                    endpoint = endpoint_kind(config.engine)
                    serving = endpoint.serving(config, config.engine, advice=_advice(who))
                    found[who] = await stack.enter_async_context(serving)
                    continue
                serving = serving_model(
                    Asked(config),
                    self.progress,
                    first_index=index,
                    logs=self.run_dir / "logs",
                    forks=self.processes.forks,
                )
                fleet, found[who] = await stack.enter_async_context(serving)
                index += 1
                if who == LEAGUE:
                    await stack.enter_async_context(self._drawing(fleet))
            yield found

    def _config_of(self, who: str) -> Config:
        """Return the configuration in which a model beside the policy is served."""
        config = self.config
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
    async def _drawing(self, league: Fleet) -> AsyncIterator[None]:
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
            due = self.controller.version // self.config.rollout.league_every
            if due != last and await self._take_past(league, due):
                last = due
            await asyncio.sleep(LOOK_EVERY_S)

    async def _take_past(self, league: Fleet, due: int) -> bool:
        """Give the league one of the versions 0 to `due` times `league_every`; return whether it
        has one."""
        every, folder = self.config.rollout.league_every, self.run_dir / "weights"
        past = [n * every for n in range(due + 1) if (folder / f"v-{n * every}").exists()]
        if not past:
            return False
        version = random.Random(f"{self.config.seed}/league/{due}").choice(past)
        try:
            await league.take(version, folder / f"v-{version}")
        except (EngineError, WeightsError, TimeoutError) as error:
            log.warning("the league does not get version %d: %s", version, error)
            return False
        self.controller.rollout_metrics["league/version"] = float(version)
        return True

    async def _before(self, player: Player, evaluator: Evaluator) -> EvalResult | None:
        """Return the evaluation of version 0; a resumed run returns the one it has kept."""
        if self.recovered.step:
            return evaluator.kept(0)
        return await self._evaluate(player, evaluator, "before")

    async def _evaluate(self, player: Player, evaluator: Evaluator, when: str) -> EvalResult | None:
        if self.config.eval.num_tasks == 0:
            return None
        self.progress.phase(f"evaluating on held-out tasks, {when} training")
        return await evaluator.play(
            self.controller.version, player, on_progress=self.progress.evaluating
        )

    async def _train(self, producers: asyncio.TaskGroup, player: Player) -> FinishedGroups:
        rollout, seed = self.config.rollout, self.config.seed
        draws = Draws.of(rollout, self.episodes, seed=seed, recovered=self.recovered)
        async with self.groups(draws) as groups:
            self.producer = await self._producer(groups, player, draws)
            async with self.producer.started():
                await self.wait_trainer()
                self.progress.phase("training")
                playing = producers.create_task(self.producer.run(), name="rollout")
                adapting = producers.create_task(self.adapt(player.services), name="concurrency")
                await self.wait_trained()
                adapting.cancel()
                playing.cancel()
        return groups.finished

    async def _producer(self, groups: OpenGroups, player: Player, draws: Draws | None) -> Producer:
        """Return the producer of groups: this process, with `player`, or another."""
        config, tasks = self.config, await asyncio.to_thread(self.tasks)
        assert tasks is not None, "a played run has tasks"
        record_tasks(self.run_dir, tasks)
        cursor = TaskCursor(
            config.rollout,
            tasks,
            seed=config.seed,
            logged=self.recovered.logged,
            draws=draws,
            version=lambda: groups.buffer.version,
            numbers=self.controller.rollout_metrics,
        )
        return producer_kind(config).producer(self, groups, cursor, player)
