"""`arl eval`: a model or checkpoint on held-out tasks, on an engine of its own or at a URL."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cluster.local import LocalProcesses
from .config import Config, ModelConfig, OpenAIEngineConfig, dump_toml
from .endpoint import check_endpoint, serving_endpoint
from .episode import Player
from .errors import ConfigError
from .evaluate import evaluate
from .fleet import Fleet
from .inspect.progress import Progress
from .model import model_folder, model_name
from .pace import measuring
from .stack import check, serving_policy, task_source


async def evaluate_model(
    config: Config, progress: Progress, *, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Evaluate `config.model` on held-out tasks; the JSON object of `arl eval --json`.

    With `checkpoint` (a run's `checkpoints/step-N`) its weights take the place of the model's.
    """
    if isinstance(config.engine, OpenAIEngineConfig):
        if checkpoint:
            raise ConfigError(
                f"--checkpoint {checkpoint} needs an engine that loads its weights: --engine="
                f"embedded or vllm; --engine=openai asks {config.engine.base_url} for --model NAME"
            )
        return await _evaluate_endpoint(config, config.engine, progress)
    await check(config)
    if config.engine.type == "vllm" and config.engine.urls:
        raise ConfigError(
            "an evaluation does not use servers that run already (engine.urls): nobody can say "
            "whose weights they serve; pass --engine.urls=[] to have one started, "
            "--engine=embedded, or --engine=openai --engine.base_url=URL/v1 --model NAME to "
            "evaluate what they serve as it is"
        )
    with tempfile.TemporaryDirectory(prefix="arl-eval-") as name:
        folder = Path(name)
        evaluated = str(checkpoint or model_name(config))
        if checkpoint:
            progress.phase(f"reading {checkpoint}")
            config = _from_checkpoint(config, checkpoint, folder / "model")
        config_file = folder / "config.toml"
        config_file.write_text(dump_toml(config), encoding="utf-8")
        async with LocalProcesses(
            folder / "logs", stop_timeout_s=config.cluster.stop_timeout_s
        ) as processes:
            progress.phase("starting the engine")
            model_dir = model_folder(config)
            fleet = Fleet(config, config_file, processes, model_dir=model_dir)
            async with fleet.running(), serving_policy(config, fleet) as player:
                return await _play(config, player, progress) | {"model": evaluated}


async def _evaluate_endpoint(
    config: Config, engine: OpenAIEngineConfig, progress: Progress
) -> dict[str, Any]:
    await check_endpoint(config, engine)
    progress.phase(f"asking {config.model.path} at {engine.base_url}")
    async with serving_endpoint(config, engine) as player:
        found = await _play(config, player, progress)
    return found | {"model": config.model.path, "base_url": engine.base_url}


async def _play(config: Config, player: Player, progress: Progress) -> dict[str, Any]:
    progress.phase("evaluating on held-out tasks")
    async with measuring(player.services) as meter:
        result = await evaluate(
            player,
            task_source(config, "eval", seed=config.eval.seed),
            config.eval,
            max_tokens=config.rollout.max_tokens,
            seed=config.seed,
            max_retries=config.rollout.max_retries,
            on_progress=progress.evaluating,
        )
    return asdict(result) | asdict(meter.read(episodes=sum(result.outcomes.values())))


def _from_checkpoint(config: Config, checkpoint: Path, folder: Path) -> Config:
    """The same configuration, its model being a checkpoint written out to `folder`."""
    from .trainer.export import export_checkpoint  # torch, which nothing else here needs

    model_dir = model_folder(config)
    export_checkpoint(checkpoint, folder, model_dir=model_dir, config=config.trainer)
    return config.model_copy(update={"model": ModelConfig(path=str(folder))})
