"""The export of a run's trained model, by `arl export --model`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym_rl.config import load_config
from agentgym_rl.core import ConfigError, adapter_of
from agentgym_rl.models import model_of_run
from agentgym_rl.storage import (
    MANIFEST,
    Retention,
    best_checkpoint,
    config_of,
    newest_checkpoint,
    read_manifest,
)
from agentgym_rl.storage.run_folder import shown
from agentgym_rl.trainer import export_checkpoint


def export_trained(folder: Path, out: Path, *, base: str = "") -> dict[str, Any]:
    """Write the model of a checkpoint to `out`, a new folder, and return the JSON object of
    `arl export --model --json`. `folder` is the checkpoint, or a run: then its best checkpoint by
    `trainer.best_metric` is taken, or the newest if none has that metric. `base`: the place of the
    model that the run began with (`--base`), if it is not where it was.

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
    model_dir = model_of_run(config.model, config.env.id, run, given=base, flag="--base")
    export_checkpoint(checkpoint, out, model_dir=model_dir, adapter=adapter_of(config))
    return {
        "out": str(out),
        "checkpoint": shown(checkpoint),
        "version": read_manifest(checkpoint).version,
        "metric": best.metric if best else None,
        "value": best.value if best else None,
    }
