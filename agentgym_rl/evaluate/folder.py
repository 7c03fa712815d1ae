"""The folder of an evaluation: what it has played so far, and what it was asked to play.

`config.toml` (resolved, whole) · `evaluated.json` (which model) · `episodes.db` (every finished
episode, on disk before it counts) · `result.json` (once all are there; as `arl eval --json`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, EndpointConfig, dump_toml, load_config
from agentgym_rl.config.section import differences as config_differences
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.core.trajectory import Trajectory
from agentgym_rl.models.resolve import resolve_paths
from agentgym_rl.storage.episode_log import EpisodeLog, check_log
from agentgym_rl.storage.episode_reader import EpisodeReader
from agentgym_rl.storage.run_folder import MARK

from .target import Asked

MODEL = "evaluated.json"
RESULT = "result.json"
EPISODES = "episodes.db"
FREE = (
    *("cluster", "logging", "run", "trainer", "weights"),
    *("eval.every", "eval.every_minutes"),
    *("eval.max_concurrent", "eval.pass_at", "eval.success_reward"),
    *("eval.price_prompt", "eval.price_completion", "eval.price_cached"),
    *("gateway.host", "gateway.port", "rollout.max_retries"),
    *("rollout.workers", "rollout.worker_cpus", "rollout.max_restarts"),
    *("engine.max_restarts", "engine.max_retries", "engine.request_timeout_s"),
)
"""Keys that may be other ones when an evaluation goes on: no episode depends on them."""


class EvalFolder:
    """A folder that this process alone writes to, while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = EpisodeLog(path / EPISODES)

    def finished(self) -> dict[str, Trajectory]:
        """Every episode that is there, by its id."""
        return {episode.episode_id: episode for episode in self.log.trajectories()}

    def write_result(self, result: Mapping[str, Any]) -> None:
        """`result.json`, whole or not at all."""
        part = self.path / f"{RESULT}.part"
        part.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        part.replace(self.path / RESULT)


@contextlib.contextmanager
def open_folder(path: Path, asked: Asked) -> Iterator[EvalFolder]:
    """The folder `path` for an evaluation: a new one, or one that goes on.

    Raises:
        ConfigError: it belongs to something else, to an evaluation with another configuration, or
            to one that is under way; or it cannot be written.
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
                _check_same(path, asked)
                _check_whole(path)
            else:
                (path / MODEL).write_text(json.dumps(_identity(asked)) + "\n", encoding="utf-8")
                part = path / f"{MARK}.part"
                part.write_text(dump_toml(_resolved(asked.config)), encoding="utf-8")
                part.replace(path / MARK)
        except BlockingIOError as error:
            raise ConfigError(f"--out {path}: another `arl eval` is at work there") from error
        except OSError as error:
            raise ConfigError(f"--out {path}: {error}") from error
        folder = EvalFolder(path)
        stack.callback(folder.log.close)
        yield folder


def read_folder(path: Path) -> tuple[Config, str, list[Trajectory]]:
    """The configuration, the model and the episodes of an evaluation, which is only read.

    Raises:
        ConfigError: there is none.
    """
    model = _read_identity(path)["model"]
    config = load_config(path / MARK)
    with contextlib.closing(EpisodeReader(path / EPISODES)) as reader:
        names = reader.episode_ids(untrained=True)
        return config, model, [reader.trajectory(name) for name in names]


def _identity(asked: Asked) -> dict[str, str]:
    """What is evaluated; of an own model its folder is in the configuration."""
    return {"model": asked.model, "checkpoint": str(asked.checkpoint or "")}


def _read_identity(path: Path) -> dict[str, str]:
    try:
        found = json.loads((path / MODEL).read_text(encoding="utf-8"))
        return {key: str(found[key]) for key in ("model", "checkpoint")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} holds no evaluation ({MODEL}: {error}); `arl eval --out {path}` makes one"
        ) from error


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Where `other` has other values than `one`, that an evaluation depends on."""
    return config_differences(one, other, free=FREE)


def _resolved(config: Config) -> Config:
    """The same, from whatever folder the command is given."""
    return config if isinstance(config.engine, EndpointConfig) else resolve_paths(config)


def _check_same(path: Path, asked: Asked) -> None:
    if (path / "checkpoints").exists() or not (path / MODEL).exists():
        raise ConfigError(
            f"--out {path} is the folder of a training run; an evaluation needs one of its own "
            f"(--run {path} evaluates what the run came to)"
        )
    try:
        kept = tomllib.loads((path / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, f"{MARK} is damaged ({error})") from error
    different = differences(kept, tomllib.loads(dump_toml(_resolved(asked.config))))
    is_now, was = _identity(asked)["checkpoint"], _read_identity(path)["checkpoint"]
    if is_now != was:
        different.insert(0, f"the checkpoint is {is_now or 'none'}, not {was or 'none'}")
    if different:
        raise ConfigError(
            f"--out {path} holds an evaluation with another configuration: "
            f"{'; '.join(different)}. Name another folder, or ask for the same again"
        )


def _check_whole(path: Path) -> None:
    if not (path / EPISODES).exists():
        return  # it was killed before it played anything, or is played anew
    try:
        check_log(path / EPISODES)
    except ConfigError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, fault: str) -> ConfigError:
    return ConfigError(f"--out {path}: {fault}: put it back from a copy, or name another folder")


def _foreign(path: Path) -> Iterator[str]:
    """What lies in a folder that no evaluation left there when it was killed at its start."""
    return (name for name in os.listdir(path) if name not in ("lock", MODEL, f"{MARK}.part"))
