"""The composition root: builds every part of a run, under one TaskGroup.

A crash anywhere ends everything, and names its cause. Order of a training run:

    engine and trainer start ─► evaluation (version 0) ─► rollout ║ training ─► evaluation
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import registry
from .asgi import serving
from .buffer import Buffer
from .cluster.local import LocalProcesses
from .config import Config, ModelConfig, dump_toml
from .controller import Controller
from .engine import version_label
from .engines.client import HttpEngine
from .engines.launch import engine_process
from .episode import Deadlines, Player
from .episode_log import EpisodeLog
from .errors import ConfigError
from .evaluate import EvalResult, evaluate
from .gateway.chat import ChatFormat
from .gateway.client import AgentClients
from .gateway.server import Gateway
from .inspect.plot import plot_reward
from .inspect.progress import Progress
from .metrics import MetricsFile
from .model import resolve_model, tokenizer_hash
from .rollout import Rollout
from .task import TaskSource
from .trainer.launch import trainer_processes
from .weights.folder import WeightsFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training run came to; the JSON object of `arl train --json`."""

    eval_before: float | None
    eval_after: float | None
    steps: int
    staleness_mean: float
    staleness_max: float
    groups_dropped: Mapping[str, int]
    overlap: float
    tool_calls_after: float | None
    outcomes: Mapping[str, int]
    duration_s: float
    run: str


def default_run_dir(config: Config) -> Path:
    """runs/<env>-<agent>-<utc time>, or `config.run`."""
    if config.run:
        return Path(config.run)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return Path("runs") / f"{_plain(config.env.id)}-{_plain(config.agent.id)}-{stamp}"


def _plain(id: str) -> str:
    """An id as part of a file name."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in id).strip("-") or "run"


@contextlib.asynccontextmanager
async def serving_policy(
    config: Config, processes: LocalProcesses, url: str
) -> AsyncIterator[Player]:
    """Wait until the engine at `url` is ready and put the gateway in front of it."""
    model_dir = resolve_model(config.model.path, revision=config.model.revision)
    chat = ChatFormat.load(model_dir)
    await processes.ready("engine", timeout_s=config.engine.start_timeout_s)
    async with contextlib.AsyncExitStack() as stack:
        engine = HttpEngine(url, timeout_s=config.engine.request_timeout_s)
        stack.push_async_callback(engine.close)
        info = await engine.info()
        if info.tokenizer_hash != tokenizer_hash(model_dir):
            raise ConfigError(
                f"engine and gateway disagree on the tokenizer or chat template of {model_dir}: "
                f"{info.tokenizer_hash} and {tokenizer_hash(model_dir)}"
            )
        gateway = Gateway(
            engine,
            chat,
            config=config.gateway,
            model_name=info.model,
            max_model_len=info.max_model_len,
        )
        base_url = await stack.enter_async_context(gateway.serve())
        clients = await stack.enter_async_context(AgentClients(base_url))
        yield _player(config, gateway, clients, info.model)


async def start_engine(config: Config, config_file: Path, processes: LocalProcesses) -> str:
    """Start an engine process that serves version 0; returns its URL (it is not ready yet)."""
    port = free_port()
    await processes.start(engine_process(config, config_file, port=port, label=version_label(0)))
    return f"http://127.0.0.1:{port}"


def _player(config: Config, gateway: Gateway, clients: AgentClients, model_name: str) -> Player:
    spec = registry.spec(config.env.id, kind="env")
    return Player(
        make_env=lambda: spec.make(**config.env.options),
        agent=registry.make_agent(config.agent.id, **config.agent.options),
        gateway=gateway,
        clients=clients,
        model_name=model_name,
        deadlines=Deadlines(
            episode_s=config.rollout.episode_timeout_s,
            turn_s=config.rollout.turn_timeout_s,
            tool_s=config.rollout.tool_timeout_s,
        ),
    )


def _tasks(config: Config, split: Any, seed: int) -> TaskSource:
    spec = registry.spec(config.env.id, kind="env")
    return spec.task_source(split, seed=seed, **config.env.options)


def check(config: Config) -> None:
    """Refuse what cannot work before anything is started.

    Raises:
        ConfigError: an unknown env, agent or model, or limits that contradict each other.
    """
    env = registry.spec(config.env.id, kind="env").make(**config.env.options)
    del env
    registry.make_agent(config.agent.id, **config.agent.options)
    resolve_model(config.model.path, revision=config.model.revision)
    _tasks(config, "train", config.seed)[0]
    if config.engine.max_model_len > config.trainer.max_tokens_per_microbatch:
        raise ConfigError(
            f"engine.max_model_len {config.engine.max_model_len} exceeds "
            f"trainer.max_tokens_per_microbatch {config.trainer.max_tokens_per_microbatch}: "
            "an episode could be too long to train; raise the latter"
        )


def prepare_run_dir(config: Config) -> tuple[Path, Path]:
    """Create the run folder and write the resolved configuration; returns (folder, file)."""
    run_dir = default_run_dir(config).resolve()
    if (run_dir / "episodes.db").exists():
        raise ConfigError(f"{run_dir} already holds a run; pass another --run, or remove it")
    run_dir.mkdir(parents=True, exist_ok=True)
    file = run_dir / "config.toml"
    file.write_text(dump_toml(config))
    return run_dir, file


async def train(config: Config, progress: Progress) -> TrainResult:
    """Run a whole training job; returns when it is finished and every process has ended."""
    check(config)
    run_dir, config_file = prepare_run_dir(config)
    async with contextlib.AsyncExitStack() as stack:
        weights_dir = stack.enter_context(WeightsFolder(f"{_plain(run_dir.name)}-{os.getpid()}"))
        episodes = EpisodeLog(run_dir / "episodes.db")
        stack.callback(episodes.close)
        metrics = MetricsFile(run_dir / "metrics.jsonl")
        stack.callback(metrics.close)
        rollout = config.rollout
        controller = Controller(
            config,
            Buffer(rollout, total_groups=config.steps * rollout.groups_per_batch),
            episodes,
            metrics,
            token=secrets.token_hex(16),
            on_step=progress.step,
        )
        processes = await stack.enter_async_context(
            LocalProcesses(run_dir / "logs", stop_timeout_s=config.cluster.stop_timeout_s)
        )
        run = _TrainingRun(
            config, run_dir, config_file, weights_dir, processes, controller, episodes, progress
        )
        return await run.run()


@dataclass
class _TrainingRun:
    config: Config
    run_dir: Path
    config_file: Path
    weights_dir: Path
    processes: LocalProcesses
    controller: Controller
    episodes: EpisodeLog
    progress: Progress

    async def run(self) -> TrainResult:
        start = time.monotonic()
        self.progress.phase("starting engine and trainer")
        async with serving(self.controller, host="127.0.0.1", port=0) as controller_url:
            engine_url = await start_engine(self.config, self.config_file, self.processes)
            await self._start_trainer(controller_url, engine_url)
            async with (
                serving_policy(self.config, self.processes, engine_url) as player,
                asyncio.TaskGroup() as tasks,
            ):
                watch = tasks.create_task(self.processes.watch(), name="watch")
                before = await self._evaluate(player, "before")
                rollout = await self._train(tasks, player)
                after = await self._evaluate(player, "after")
                self.progress.phase("writing checkpoint and export")
                async with asyncio.timeout(self.config.trainer.start_timeout_s):
                    await watch
        return self._summary(before, after, rollout, time.monotonic() - start)

    async def _start_trainer(self, controller_url: str, engine_url: str) -> None:
        for spec in trainer_processes(
            self.config,
            self.config_file,
            run_dir=self.run_dir,
            weights_dir=self.weights_dir,
            controller_url=controller_url,
            engine_urls=[engine_url],
            rendezvous=f"tcp://127.0.0.1:{free_port()}",
            token=self.controller.token,
        ):
            await self.processes.start(spec)

    async def _evaluate(self, player: Player, when: str) -> EvalResult | None:
        if self.config.eval.num_tasks == 0:
            return None
        self.progress.phase(f"evaluating on held-out tasks, {when} training")
        result = await evaluate(
            player,
            _tasks(self.config, "eval", self.config.eval.seed),
            self.config.eval,
            max_tokens=self.config.rollout.max_tokens,
            on_progress=self.progress.evaluating,
        )
        self.progress.phase(f"held-out reward {when} training: {result.reward:.3f}")
        return result

    async def _train(self, tasks: asyncio.TaskGroup, player: Player) -> Rollout:
        rollout = Rollout(
            self.config,
            player=player,
            tasks=_tasks(self.config, "train", self.config.seed),
            buffer=self.controller.buffer,
            episodes=self.episodes,
            controller=self.controller,
        )
        await self.controller.changes.wait_for(
            lambda: len(self.controller.ready_ranks) == self.config.trainer.num_ranks,
            who="arl train",
            what="the trainer to load its model",
            timeout_s=self.config.trainer.start_timeout_s,
        )
        self.progress.phase("training")
        playing = tasks.create_task(rollout.run(), name="rollout")
        for version in range(1, self.config.steps + 1):
            await self.controller.changes.wait_for(
                lambda version=version: self.controller.version >= version,
                who="arl train",
                what=f"policy version {version}",
                timeout_s=2 * self.config.trainer.batch_timeout_s,
            )
        playing.cancel()
        return rollout

    def _summary(
        self,
        before: EvalResult | None,
        after: EvalResult | None,
        rollout: Rollout,
        duration_s: float,
    ) -> TrainResult:
        history = self.controller.history
        if self.config.logging.plot:
            found = {0: before, self.config.steps: after}
            plot_reward(
                self.run_dir / "reward.png",
                history,
                title=f"{self.config.env.id} · {self.config.agent.id}",
                evaluations={v: result.reward for v, result in found.items() if result},
            )
        return TrainResult(
            eval_before=before.reward if before else None,
            eval_after=after.reward if after else None,
            steps=len(history),
            staleness_mean=sum(m["staleness/mean"] for m in history) / len(history),
            staleness_max=max(m["staleness/max"] for m in history),
            groups_dropped=dict(self.controller.buffer.dropped),
            overlap=self.controller.overlap.share,
            tool_calls_after=after.tool_calls if after else None,
            outcomes=dict(rollout.outcomes),
            duration_s=duration_s,
            run=_shown(self.run_dir),
        )


async def evaluate_model(
    config: Config, progress: Progress, *, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Evaluate `config.model` on held-out tasks; the JSON object of `arl eval --json`.

    With `checkpoint` (a run's `checkpoints/step-N`) its weights take the place of the model's.
    """
    check(config)
    with tempfile.TemporaryDirectory(prefix="arl-eval-") as folder:
        evaluated = checkpoint or config.model.path
        if checkpoint:
            progress.phase(f"reading {checkpoint}")
            config = _from_checkpoint(config, checkpoint, Path(folder) / "model")
        config_file = Path(folder) / "config.toml"
        config_file.write_text(dump_toml(config))
        async with LocalProcesses(
            Path(folder) / "logs", stop_timeout_s=config.cluster.stop_timeout_s
        ) as processes:
            progress.phase("starting the engine")
            url = await start_engine(config, config_file, processes)
            async with (
                serving_policy(config, processes, url) as player,
                asyncio.TaskGroup() as tasks,
            ):
                watch = tasks.create_task(processes.watch(), name="watch")
                progress.phase("evaluating on held-out tasks")
                result = await evaluate(
                    player,
                    _tasks(config, "eval", config.eval.seed),
                    config.eval,
                    max_tokens=config.rollout.max_tokens,
                    on_progress=progress.evaluating,
                )
                watch.cancel()
    return asdict(result) | {"model": str(evaluated)}


def _from_checkpoint(config: Config, checkpoint: Path, folder: Path) -> Config:
    """The same configuration, its model being a checkpoint written out to `folder`."""
    from .trainer.export import export_checkpoint  # torch, which nothing else here needs

    model_dir = resolve_model(config.model.path, revision=config.model.revision)
    export_checkpoint(checkpoint, folder, model_dir=model_dir, config=config.trainer)
    return config.model_copy(update={"model": ModelConfig(path=str(folder))})


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _shown(path: Path) -> str:
    """A path as a person would type it here."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
