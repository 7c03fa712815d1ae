"""The command `arl train`: a run whose groups are played by an agent in an environment, in this
process or in workers.

engines and trainer start ─► evaluation (version 0) ─► rollout ║ training ─► evaluation
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from agentgym_rl.cluster import ForkServer
from agentgym_rl.config import Config
from agentgym_rl.core import extension_names, load_extension
from agentgym_rl.evaluate import EvalResult, Evaluator
from agentgym_rl.models import model_folder, resolve_paths, with_model_defaults
from agentgym_rl.report import Progress
from agentgym_rl.rollout import (
    Draws,
    FinishedGroups,
    OpenGroups,
    Player,
    Producer,
    TaskCursor,
    check_machine,
    check_prompts,
    check_single_agent,
    draws_of,
    env_spec,
    player_kind,
    serving_policy,
    specimen,
    tried,
    turns_of,
)
from agentgym_rl.rollout.config_checks import check
from agentgym_rl.rollout.throughput import measuring
from agentgym_rl.storage.run_folder import record_tasks

from .opening import training
from .parts import producer_kind
from .result import Played, TrainResult
from .training import TrainingRun

OPPONENTS = "opponents"
OpponentsOf = Callable[[TrainingRun], AbstractAsyncContextManager[Mapping[str, Player]]]
"""A member of the group `agentgym_rl.opponents`: serves models beside the policy while a run plays,
by player; none if the run has none."""


async def checked(config: Config, *, say: Callable[[str], None]) -> Config:
    """Refuse a run that cannot work, or whose prompts do not fit, before anything is started.

    Return its configuration with the defaults that fit its model. `say` gets progress messages if
    that takes long.

    Raises:
        ConfigError: see `config_checks.check` and `config_checks.check_prompts`.
    """
    await check(config)
    spec = env_spec(config.env, config.rollout)
    if config.eval.num_tasks or player_kind(config.rollout, spec).single_agent:
        check_single_agent(spec, await specimen(spec))
    turns = await turns_of(config.env, config.agent, config.rollout)
    config = with_model_defaults(config, model_folder(config.model, config.env.id), turns=turns)
    check_machine(config, trains=True)  # again, with the dtype that fits its model
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
    async with (
        tried(config, "train"),
        training(_PlayedRun, config, progress, tasks=tasks, resume=resume, server=server) as run,
    ):
        return await run.run()


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
                on_result=partial(self.observed, "evaluated"),
            )
            before = await self._before(player, evaluator)
            scheduled = producers.create_task(
                evaluator.run(player.services), name="evaluations on schedule"
            )
            finished = await self._train(producers, player)
            self.evaluations.close()
            ends = not self.controller.stopped
            after = await self._evaluate(player, evaluator, "after") if ends else None
            if self.config.eval.scheduled and not scheduled.done():
                self.progress.phase("waiting for evaluations on schedule")
            await scheduled
            ends_played = sum(sum(r.outcomes.values()) - r.resumed for r in (before, after) if r)
            episodes = finished.outcomes.total() + ends_played + evaluator.num_scheduled
            pace = meter.read(episodes=episodes, others=self.fleet.mirrors.used)
        restarts = self.producer.restarts if self.producer else 0
        return Played(finished, pace, before, after, restarts)

    @asynccontextmanager
    async def _opponents(self) -> AsyncIterator[dict[str, Player]]:
        """Serve the models beside the policy, by player."""
        found: dict[str, Player] = {}
        async with AsyncExitStack() as stack:
            for name in extension_names(OPPONENTS):
                serve: OpponentsOf = load_extension(OPPONENTS, name)
                found |= await stack.enter_async_context(serve(self))
            yield found

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
        draws = draws_of(rollout, self.episodes, seed=seed, recovered=self.recovered)
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
