"""The comparison of several models on the same tasks: the JSON object of `arl eval`'s table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config
from agentgym_rl.core.errors import ConfigError

from .folder import RESULT, differences, read_folder
from .result import EvalResult, summarize
from .statistics import paired_difference


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model that was evaluated."""

    report: dict[str, Any]
    """The JSON object of `arl eval --json`."""
    result: EvalResult


def compare(evaluated: Sequence[Evaluated]) -> dict[str, Any]:
    """Return the reports as `models`, each with its paired `difference` in reward to the first."""
    first, *others = evaluated
    reports = [first.report | {"difference": None}]
    for other in others:
        difference = paired_difference(other.result.rewards, first.result.rewards)
        if difference is None:
            raise ConfigError(
                f"{other.report['model']} and {first.report['model']} have no task in common"
            )
        reports.append(other.report | {"difference": asdict(difference)})
    return {"models": reports, "difference_to": first.report["model"]}


def compare_folders(folders: Sequence[Path]) -> dict[str, Any]:
    """Compare evaluations that `arl eval --out` has kept, finished or not, with `compare`.

    Raises:
        ConfigError: a folder holds no evaluation, or one of other tasks.
    """
    found = [(folder, *read_folder(folder)) for folder in folders]
    first = found[0][1]
    names = [
        model if config.agent == first.agent else f"{model} ({config.agent.id})"
        for _, config, model, _ in found
    ]
    evaluated: list[Evaluated] = []
    for name, (folder, config, _, episodes) in zip(names, found, strict=True):
        if different := differences(_tasks_of(first), _tasks_of(config)):
            raise ConfigError(
                f"--compare {folder}: other tasks than those of {folders[0]}: "
                f"{'; '.join(different)}"
            )
        if not episodes:
            raise ConfigError(f"--compare {folder}: no episode is finished yet")
        seconds = sum(episode.metrics.get("duration_s", 0.0) for episode in episodes)
        result = summarize(episodes, config.eval, duration_s=seconds, resumed=len(episodes))
        report = asdict(result) | {
            "model": name if names.count(name) == 1 else f"{name} in {folder}",
            "out": str(folder),
            "finished": (folder / RESULT).exists(),
        }
        del report["rewards"]
        evaluated.append(Evaluated(report, result))
    return compare(evaluated)


def _tasks_of(config: Config) -> dict[str, Any]:
    """Return the part of the configuration that determines the tasks."""
    values = config.model_dump(exclude_none=True)
    return {"env": values["env"], "eval": {"seed": values["eval"]["seed"]}}
