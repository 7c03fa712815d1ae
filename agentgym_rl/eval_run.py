"""`arl eval`: a model or checkpoint on held-out tasks, on an engine of its own."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cluster.local import LocalProcesses
from .config import Config, ModelConfig, dump_toml
from .errors import ConfigError
from .evaluate import EvalResult, evaluate
from .fleet import Fleet
from .inspect.progress import Progress
from .model import resolve_model
from .stack import check, serving_policy, task_source


async def evaluate_model(
    config: Config, progress: Progress, *, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Evaluate `config.model` on held-out tasks; the JSON object of `arl eval --json`.

    With `checkpoint` (a run's `checkpoints/step-N`) its weights take the place of the model's.
    """
    check(config)
    if config.engine.type == "vllm" and config.engine.urls:
        raise ConfigError(
            "an evaluation does not use servers that run already (engine.urls): nobody can say "
            "whose weights they serve; pass --engine.urls=[] to have one started, or "
            "--engine=embedded"
        )
    with tempfile.TemporaryDirectory(prefix="arl-eval-") as name:
        folder = Path(name)
        evaluated = str(checkpoint or config.model.path)
        if checkpoint:
            progress.phase(f"reading {checkpoint}")
            config = _from_checkpoint(config, checkpoint, folder / "model")
        config_file = folder / "config.toml"
        config_file.write_text(dump_toml(config), encoding="utf-8")
        async with LocalProcesses(
            folder / "logs", stop_timeout_s=config.cluster.stop_timeout_s
        ) as processes:
            result = await _evaluate(config, config_file, processes, progress)
    return asdict(result) | {"model": evaluated}


async def _evaluate(
    config: Config, config_file: Path, processes: LocalProcesses, progress: Progress
) -> EvalResult:
    progress.phase("starting the engine")
    model_dir = resolve_model(config.model.path, revision=config.model.revision)
    fleet = Fleet(config, config_file, processes, model_dir=model_dir)
    async with fleet.running(), serving_policy(config, fleet) as player:
        progress.phase("evaluating on held-out tasks")
        return await evaluate(
            player,
            task_source(config, "eval", seed=config.eval.seed),
            config.eval,
            max_tokens=config.rollout.max_tokens,
            seed=config.seed,
            max_retries=config.rollout.max_retries,
            on_progress=progress.evaluating,
        )


def _from_checkpoint(config: Config, checkpoint: Path, folder: Path) -> Config:
    """The same configuration, its model being a checkpoint written out to `folder`."""
    from .trainer.export import export_checkpoint  # torch, which nothing else here needs

    model_dir = resolve_model(config.model.path, revision=config.model.revision)
    export_checkpoint(checkpoint, folder, model_dir=model_dir, config=config.trainer)
    return config.model_copy(update={"model": ModelConfig(path=str(folder))})
