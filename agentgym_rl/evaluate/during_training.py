"""The evaluations of a training run: before and after it on its own engines, or on schedule.

Scheduled evaluations use an additional engine that does not get publications: it gets the weights
of one version, plays the complete evaluation of that version, and then gets the next version.
Rollout and training continue meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

from agentgym_rl.cluster import Forks, LocalProcesses
from agentgym_rl.config import Config
from agentgym_rl.core import (
    ArlError,
    ConfigError,
    EngineError,
    InfraError,
    ProcessDied,
    StorageError,
    TooManyErrors,
    WeightsError,
)
from agentgym_rl.core.errors import leaves
from agentgym_rl.engines import EngineSetup
from agentgym_rl.fleet import Fleet
from agentgym_rl.gym import Services
from agentgym_rl.models import model_folder
from agentgym_rl.report import Progress
from agentgym_rl.rollout import Player, env_spec, serving_policy

from .evaluate import ON_PROGRESS, evaluate
from .folder import EvalFolder, EvalTarget, open_folder, read_folder
from .queue import EvalQueue
from .result import EvalResult, summarize

log = logging.getLogger(__name__)

_FAILURES = (InfraError, ProcessDied, WeightsError, TooManyErrors, OSError, StorageError)
"""The errors that end a scheduled evaluation, but not the run (TimeoutError is an OSError)."""
OnResult = Callable[[int, EvalResult], Awaitable[None]]
"""A function of a policy version and the result of its evaluation."""


class Evaluator:
    """The player of the queued evaluations; every finished episode is on disk before it counts."""

    def __init__(
        self,
        config: Config,
        config_file: Path,
        run_dir: Path,
        queue: EvalQueue,
        *,
        incarnation: int,
        progress: Progress,
        forks: Forks | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        """Set up the evaluator. With `forks`, the engine of scheduled evaluations is forked like
        the engines of the run. `on_result` is awaited after each evaluation."""
        self.num_scheduled = 0
        """The number of episodes played on schedule."""
        self._config = config
        self._config_file = config_file
        self._run_dir = run_dir
        self._queue = queue
        self._incarnation = incarnation
        self._progress = progress
        self._forks = forks
        self._on_result = on_result
        self._under_way: int | None = None

    async def play(
        self, version: int, player: Player, *, on_progress: ON_PROGRESS = lambda done, total: None
    ) -> EvalResult:
        """Evaluate `version`, which `player` samples, without the episodes that are on disk.

        Raises:
            InfraError, TooManyErrors, ConfigError: see `evaluate`.
            EngineError: other policy versions sampled some of the replies.
        """
        config = self._config
        spec = env_spec(config.env, config.rollout)
        self._queue.begin(version)
        checkpoint = self._run_dir / "checkpoints" / f"step-{version}" if version else None
        target = EvalTarget(config, checkpoint)
        with _folder(self._queue.records.episodes(version), target) as folder:
            result = await evaluate(
                config.eval,
                config.rollout,
                player.single_agent,
                await spec.read_tasks("eval", seed=config.eval.seed),
                seed=config.seed,
                on_progress=on_progress,
                before=folder.finished(),
                keep=folder.log.add_evaluated,
            )
            if others := set(result.versions) - {version}:
                raise EngineError(
                    f"policy versions {sorted(others)} answered in the evaluation of {version}"
                )
            more = {"model": target.model, "out": str(folder.path)}
            folder.write_result(result.report() | more)
        self._queue.end(version, "done", metrics=eval_metrics(result))
        if self._on_result is not None:
            await self._on_result(version, result)
        return replace(result, played=())  # the folder has them

    def kept(self, version: int) -> EvalResult | None:
        """Return the result of a complete evaluation on disk; None: there is none."""
        record = self._queue.records.read().get(version)
        if record is None or record.status != "done":
            return None
        try:
            config, _, episodes = read_folder(self._queue.records.episodes(version))
            return summarize(episodes, config.eval, duration_s=0.0, resumed=len(episodes))
        except ArlError as error:
            log.warning("the evaluation of policy version %d cannot be read: %s", version, error)
            return None

    async def run(self, services: Services) -> None:
        """Evaluate on schedule, until the queue is closed and empty.

        A failure ends only that evaluation and its engine; the next one gets a new engine.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.keep(), name="keep versions to evaluate")
            while (version := await self._queue.next()) is not None:
                self._under_way = version
                try:
                    async with self._serving(version, services) as (fleet, player):
                        await self._play_all(fleet, player)
                except* _FAILURES as group:
                    self._failed(leaves(group)[0])
                else:
                    break

    async def _play_all(self, fleet: Fleet, player: Player) -> None:
        """Evaluate queued versions on one engine, until there are no more or an error occurs."""
        version = self._under_way
        while version is not None:
            self._under_way = version
            await fleet.take(version, self._queue.records.weights(version))
            self._progress.phase(f"evaluating version {version} beside training")
            result = await self.play(version, player)
            self.num_scheduled += sum(result.outcomes.values()) - result.resumed
            self._under_way = None
            version = await self._queue.next()

    def _failed(self, error: BaseException) -> None:
        """Log the failure of the engine, and end its evaluation as failed, if one was running."""
        version, self._under_way = self._under_way, None
        if version is None:
            return log.warning("the idle engine of evaluations failed: %s", error)
        log.warning("the evaluation of policy version %d failed: %s", version, error)
        self._queue.end(version, "failed", str(error) or repr(error))

    @contextlib.asynccontextmanager
    async def _serving(
        self, version: int, services: Services
    ) -> AsyncIterator[tuple[Fleet, Player]]:
        """Open an additional engine with the weights of `version`, and a gateway for it."""
        own = self._config.own_engine
        config = self._config.model_copy(
            update={
                "engine": own.model_copy(update={"num_servers": 1}),
                "gateway": self._config.gateway.model_copy(update={"port": 0}),
            }
        )
        async with LocalProcesses(
            self._run_dir / "logs",
            stop_timeout_s=config.cluster.stop_timeout_s,
            forks=self._forks,
        ) as processes:
            fleet = Fleet(
                EngineSetup.of(config),
                self._config_file,
                processes,
                model_dir=model_folder(config.model, config.env.id),
                version=version,
                incarnation=self._incarnation,
                weights_file=self._queue.records.weights(version),
                first_index=own.num_servers,
            )
            async with fleet.running(), serving_policy(config, fleet, services) as player:
                yield fleet, player


@contextlib.contextmanager
def _folder(path: Path, target: EvalTarget) -> Iterator[EvalFolder]:
    """Open the folder of an evaluation; remove episodes that another configuration played there."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(open_folder(path, target))
        except ConfigError as error:
            log.info("an evaluation starts again from the beginning: %s", error)
            shutil.rmtree(path)
            folder = stack.enter_context(open_folder(path, target))
        yield folder


def eval_metrics(result: EvalResult) -> dict[str, float | None]:
    """Return the `eval/…` metrics of an evaluation (names: docs/metrics.md)."""
    low, high = result.reward_ci or (None, None)
    found: dict[str, float | None] = {
        "eval/reward": result.reward,
        "eval/reward_low": low,
        "eval/reward_high": high,
        "eval/tasks": float(result.num_tasks),
        "eval/episodes": float(result.num_episodes),
        "eval/too_long": float(result.outcomes.get("too_long", 0)),
        "eval/turns": result.turns,
        "eval/duration_s": result.duration_s,
    }
    found |= {f"eval/pass_at_{k}": estimate.value for k, estimate in result.pass_at.items()}
    if len(result.envs) > 1:
        found |= {f"eval/env/{name}/reward": env.reward for name, env in result.envs.items()}
    return found
