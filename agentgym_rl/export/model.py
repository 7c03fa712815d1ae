"""The export of a checkpoint as a folder in Hugging Face format: `arl export --model`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym_rl.config import load_config
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.models.resolve import model_folder
from agentgym_rl.storage.checkpoints import (
    MANIFEST,
    Retention,
    best_checkpoint,
    newest_checkpoint,
    read_manifest,
)
from agentgym_rl.storage.run_folder import config_of, shown


def export_trained(folder: Path, out: Path) -> dict[str, Any]:
    """Write the model of a checkpoint to `out`, a new folder, and return the JSON object of
    `arl export --model --json`. `folder` is the checkpoint, or a run: then its best checkpoint by
    `trainer.best_metric` is taken, or the newest if none has that metric.

    Raises:
        ConfigError: neither a run with a checkpoint nor a checkpoint of one, or `out` exists.
        TrainerError: the checkpoint is incomplete, or `out` cannot be written.
    """
    if out.exists():
        raise ConfigError(f"--out {out} is there already; name a new folder")
    is_checkpoint = (folder / MANIFEST).exists()
    run = folder.resolve().parents[1] if is_checkpoint else folder
    config = load_config(config_of(run, f"arl export --model {folder}"))
    best = None
    if not is_checkpoint:
        best = best_checkpoint(run / "checkpoints", Retention.of(config.trainer))
    checkpoint = folder if is_checkpoint else best.checkpoint if best else None
    checkpoint = checkpoint or newest_checkpoint(run / "checkpoints")
    if checkpoint is None:
        raise ConfigError(
            f"arl export --model {folder}: the run has no complete checkpoint "
            "(trainer.checkpoint_every writes some on the way)"
        )
    from agentgym_rl.trainer.export import export_checkpoint  # torch, which only this needs

    model_dir = model_folder(config.model, config.env.id)
    export_checkpoint(checkpoint, out, model_dir=model_dir, lora=config.lora)
    return {
        "out": str(out),
        "checkpoint": shown(checkpoint),
        "version": read_manifest(checkpoint).version,
        "metric": best.metric if best else None,
        "value": best.value if best else None,
    }
