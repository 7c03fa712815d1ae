"""The folder of an evaluation: its target (a model with its configuration), and the episodes played
so far. Several evaluations of the same tasks are compared here.

`config.toml` (resolved, complete) · `evaluated.json` (the model) · `episodes.db` (every finished
episode, on disk before it counts) · `result.json` (after the last episode; as `arl eval --json`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentgym_rl.config import (
    Config,
    EndpointConfig,
    EnvConfig,
    EvalConfig,
    LaterVersion,
    dump_record,
    dump_toml,
    free_keys,
    load_config,
)
from agentgym_rl.core import ConfigError, Trajectory, flat, parse_json, parse_toml
from agentgym_rl.core import differences as config_differences
from agentgym_rl.models import model_name, resolve_paths
from agentgym_rl.runtime import replace_text
from agentgym_rl.storage import (
    EVALUATED,
    EVALUATION_RESULT,
    RUN,
    EpisodeLog,
    EpisodeReader,
    check_log,
)
from agentgym_rl.storage.run_folder import MARK, shown

from .result import DURATION, EvalResult, summarize
from .statistics import paired_difference


@dataclass(frozen=True, slots=True)
class EvalTarget:
    """The model to evaluate: `config.model`; the weights of `checkpoint` (a run's
    `checkpoints/step-N`), if there is one, replace those of the model."""

    config: Config
    checkpoint: Path | None = None

    @property
    def model(self) -> str:
        """Return the name of the model in results."""
        if isinstance(self.config.engine, EndpointConfig):
            return self.config.model.path
        if self.checkpoint:
            return shown(self.checkpoint)
        return model_name(self.config.model, self.config.env.id)

    @property
    def resolved(self) -> Config:
        """Return the configuration with absolute paths, the same from any working folder."""
        is_foreign = isinstance(self.config.engine, EndpointConfig)
        return self.config if is_foreign else resolve_paths(self.config)


MODEL, RESULT = EVALUATED, EVALUATION_RESULT
EPISODES = "episodes.db"


class EvalFolder:
    """A folder that only this process writes to while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = EpisodeLog(path / EPISODES)

    def finished(self) -> dict[str, Trajectory]:
        """Return the episodes in the folder, by their ids. Those that failed are left out while
        there is no result: the evaluation may have ended because of them, and plays them again."""
        is_over, episodes = (self.path / RESULT).exists(), self.log.trajectories()
        return {it.episode_id: it for it in episodes if is_over or not it.outcome.failed}

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json` atomically."""
        part = self.path / f"{RESULT}.part"
        replace_text(self.path / RESULT, json.dumps(result, indent=2) + "\n", part=part)


@contextlib.contextmanager
def open_folder(path: Path, target: EvalTarget) -> Iterator[EvalFolder]:
    """Open the folder `path` for a new or resumed evaluation.

    Raises:
        ConfigError: the folder is of another kind, of an evaluation with another configuration,
            or of one that is running; or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / MARK).exists() and any(_foreign(path)):
                raise ConfigError(
                    f"--out {path}: the folder is not empty, and holds no evaluation; name another"
                )
            lock = stack.enter_context((path / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (path / MARK).exists():
                _check_same(path, target)
                _check_whole(path)
            else:
                (path / MODEL).write_text(json.dumps(_identity(target)) + "\n", encoding="utf-8")
                part = path / f"{MARK}.part"
                replace_text(path / MARK, dump_record(target.resolved, path), part=part)
        except BlockingIOError as error:
            raise ConfigError(f"--out {path}: another `arl eval` uses this folder") from error
        except OSError as error:
            raise ConfigError(f"--out {path}: {error}") from error
        folder = EvalFolder(path)
        stack.callback(folder.log.close)
        yield folder


def read_folder(path: Path) -> tuple[Config, str, list[Trajectory]]:
    """Read the configuration, the model and the episodes of an evaluation.

    Raises:
        ConfigError: there is no evaluation.
    """
    model = _read_identity(path)["model"]
    config = load_config(path / MARK)
    with contextlib.closing(EpisodeReader(path / EPISODES)) as reader:
        names = reader.episode_ids(untrained=True)
        return config, model, [reader.trajectory(name) for name in names]


def _identity(target: EvalTarget) -> dict[str, str]:
    """Return the name of the model and the checkpoint; the configuration has the model's folder."""
    return {"model": target.model, "checkpoint": str(target.checkpoint or "")}


def _read_identity(path: Path) -> dict[str, str]:
    try:
        found = parse_json((path / MODEL).read_text(encoding="utf-8"))
        return {key: str(found[key]) for key in ("model", "checkpoint")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} holds no evaluation ({MODEL}: {error}); `arl eval --out {path}` makes one"
        ) from error


def kept_date(path: Path) -> str | None:
    """Return the date in the prompts of the evaluation kept in a folder, "" if it records none;
    None if there is no evaluation."""
    try:
        kept = parse_toml((path / MARK).read_text(encoding="utf-8"))
        return str(kept.get("gateway", {}).get("date", ""))
    except (OSError, ValueError, AttributeError):  # `_check_same` names what is damaged
        return None


def with_kept(target: EvalTarget, path: Path) -> EvalTarget:
    """Return the target for continuing the evaluation kept in a folder: keys that did not exist
    then, and that the user did not set, get the values that were in effect then."""
    config = target.config
    try:
        named = flat(parse_toml((path / MARK).read_text(encoding="utf-8")))
        kept = flat(parse_toml(dump_toml(load_config(path / MARK))))
    except (OSError, ValueError, ConfigError):  # none, or `_check_same` names what is damaged
        return target
    now = flat(parse_toml(dump_toml(config)))
    if now["env.id"] != kept["env.id"]:
        return target
    free = named.keys() | flat(config.model_dump(exclude_unset=True)).keys()
    then = {
        key: value
        for key, value in kept.items()
        if key not in free and (key in now or key.startswith("env.options."))
    }
    return replace(target, config=load_config(config, then))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the differences of `other` from `one` that affect an evaluation."""
    return config_differences(one, other, free=free_keys(Config, "eval"))


def _check_same(path: Path, target: EvalTarget) -> None:
    if (path / "checkpoints").exists() or not (path / MODEL).exists():
        raise ConfigError(
            f"--out {path} is the folder of a training run; use another for an evaluation "
            f"(--run {path} evaluates the result of the run)"
        )
    try:
        kept = load_config(path / MARK)
    except LaterVersion:
        raise
    except ConfigError as error:
        raise _damaged(path, f"{MARK} is damaged ({error})") from error
    now = target.resolved
    different = differences(*(parse_toml(dump_toml(config)) for config in (kept, now)))
    is_now, was = _identity(target)["checkpoint"], _read_identity(path)["checkpoint"]
    if is_now != was:
        different.insert(0, f"the checkpoint is {is_now or 'none'}, not {was or 'none'}")
    if different:
        raise ConfigError(
            f"--out {path} holds an evaluation with another configuration: "
            f"{'; '.join(different)}. Name another folder, or use the same configuration"
        )


def _check_whole(path: Path) -> None:
    if not (path / EPISODES).exists():
        return  # killed before its first episode, or about to play again
    try:
        check_log(path / EPISODES)
    except ConfigError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, fault: str) -> ConfigError:
    return ConfigError(f"--out {path}: {fault}: put it back from a copy, or name another folder")


def _foreign(path: Path) -> Iterator[str]:
    """Return the files in a folder that an evaluation killed at its start cannot have left."""
    return (name for name in os.listdir(path) if name not in ("lock", MODEL, RUN, f"{MARK}.part"))


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
        if different := differences(*(_tasks_of(it.env, it.eval) for it in (first, config))):
            raise ConfigError(
                f"--compare {folder}: other tasks than those of {folders[0]}: "
                f"{'; '.join(different)}"
            )
        if not episodes:
            raise ConfigError(f"--compare {folder}: no episode is finished yet")
        seconds = sum(episode.metrics.get(DURATION, 0.0) for episode in episodes)
        result = summarize(episodes, config.eval, duration_s=seconds, resumed=len(episodes))
        report = result.report() | {
            "model": name if names.count(name) == 1 else f"{name} in {folder}",
            "out": str(folder),
            "finished": (folder / RESULT).exists(),
        }
        evaluated.append(Evaluated(report, result))
    return compare(evaluated)


def _tasks_of(env: EnvConfig, chosen: EvalConfig) -> dict[str, Any]:
    """Return the part of the configuration that determines the tasks."""
    found = {"split": chosen.split, "seed": chosen.seed}
    return {"env": env.model_dump(exclude_none=True), "eval": found}
