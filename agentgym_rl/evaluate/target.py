"""The model that an evaluation of a run or a checkpoint plays."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, EndpointConfig, ServerEngineConfig, load_config
from agentgym_rl.core import ConfigError
from agentgym_rl.storage import config_of

from .folder import EvalTarget

_CHECKPOINT = re.compile(r"step-(\d+)")


def chosen(
    config: Config | Mapping[str, Any] | Path | str | None,
    overrides: Mapping[str, Any],
    *,
    run: Path | str | None,
    checkpoint: Path | str | None,
) -> EvalTarget:
    """Return the model of `config`, or the final one of the folder `run`, or that of `checkpoint`;
    the last two have the configuration of their run.

    Raises:
        ConfigError: `run` or `checkpoint` is invalid; the message lists the available ones.
    """
    weights = checked_checkpoint(Path(checkpoint)) if checkpoint else None
    if run:
        config = config_of_run(Path(run), config)
        if not (weights or "model.path" in overrides):
            return _export(Path(run), config, overrides)
    elif weights and config is None:
        option = f"--checkpoint {checkpoint} without --run or --config"
        config = config_of(run_of(weights), option)
    return EvalTarget(load_config(config, overrides), weights)


def first_engines(targets: Sequence[EvalTarget]) -> list[int]:
    """Return the number of the first engine of each model, for models that are served at the same
    time: servers get their share of `engine.gpus` by their numbers.

    Raises:
        ConfigError: there are too few of these GPUs.
    """
    found, taken = list[int](), Counter[tuple[int, ...]]()
    for each in targets:
        engine, first = each.config.engine, 0
        if isinstance(engine, ServerEngineConfig):
            gpus, width = engine.gpus, engine.gpus_per_server
            first = math.ceil(taken[gpus] / width)
            taken[gpus] = (first + engine.num_servers) * width
            if gpus and taken[gpus] > len(gpus):
                raise ConfigError(
                    f"engine.gpus {list(gpus)}: the engines of {each.model} and of the models "
                    f"before it are served at the same time and need {taken[gpus]} GPUs"
                )
        found.append(first)
    return found


def config_of_run(run: Path, config: object = None) -> Path:
    """Return the configuration file of the folder `run`.

    Raises:
        ConfigError: there is no such file, or a `config` is given, too.
    """
    if config is not None:
        raise ConfigError(
            f"--run {run} and --config: give one of them; --run takes the configuration of that run"
        )
    return config_of(run, f"--run {run}")


def _export(run: Path, file: Path, overrides: Mapping[str, Any]) -> EvalTarget:
    """Return the final model of `run`."""
    config = load_config(file, {**overrides, "model.path": str(export_of(run))})
    if isinstance(config.engine, EndpointConfig):
        raise ConfigError(
            f"--run {run} with --engine={config.engine.type}: the weights of a run are "
            "evaluated on an engine that is started here, such as --engine=embedded; to evaluate "
            "another model in the same way, add --model NAME"
        )
    return EvalTarget(config)


def checked_checkpoint(path: Path) -> Path:
    """Return the absolute path of a checkpoint.

    Raises:
        ConfigError: the folder is not a checkpoint; the message names one nearby, if there is one.
    """
    if not path.is_dir():
        raise ConfigError(f"--checkpoint {path}: no such folder (in {Path.cwd()})")
    if not (path / "manifest.json").exists():
        inside = _checkpoints(path) or _checkpoints(path / "checkpoints")
        hint = f"try {inside[-1]}" if inside else "expected RUN/checkpoints/step-N"
        raise ConfigError(f"--checkpoint {path}: no checkpoint, manifest.json is missing; {hint}")
    return path.resolve()


def run_of(checkpoint: Path) -> Path:
    """Return the run folder that contains `checkpoint` as `checkpoints/step-N`."""
    return checkpoint.parent.parent


def export_of(run: Path) -> Path:
    """Return the folder of a run's final model.

    Raises:
        ConfigError: the run did not finish.
    """
    if (run / "export").is_dir():
        return run / "export"
    found = _checkpoints(run / "checkpoints")
    if not found:
        raise ConfigError(
            f"--run {run}: this run did not finish: it has neither export/ nor checkpoints/ "
            "(--trainer.checkpoint_every=N writes some on the way)"
        )
    raise ConfigError(
        f"--run {run}: this run did not finish, there is no export/; try --checkpoint {found[-1]} "
        f"(there: {', '.join(path.name for path in found)})"
    )


def _checkpoints(folder: Path) -> list[Path]:
    """Return complete checkpoints, oldest first (without torch, unlike trainer/checkpoint.py)."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := _CHECKPOINT.fullmatch(p.name))]
    return [path for _, path in sorted(found) if (path / "manifest.json").exists()]
