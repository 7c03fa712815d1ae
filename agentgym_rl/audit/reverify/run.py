"""The command: reads a run, plays its episodes again, returns the report."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, load_config
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.rollout.player import env_spec, services, specimen
from agentgym_rl.runtime.atomic_file import new_file
from agentgym_rl.storage.episode_reader import EpisodeReader
from agentgym_rl.storage.run_folder import config_of

from .replay import Replay, Replayer
from .report import Report

OnProgress = Callable[[int], None]
"""Called with the number of episodes played again since the call before."""


async def reverify(
    run: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    write: Path | None = None,
    on_progress: OnProgress = lambda count: None,
) -> dict[str, Any]:
    """Play every recorded episode of a run again, in the environment as it is now.

    The actions are the recorded ones: no model is asked. The run is only read, whether it has
    finished or not. The report is the JSON object of `arl reverify --json`.

    Args:
        overrides: Dotted keys on top of the run's configuration.
        write: A new file for the rewards, one JSON object an episode that could be played. It is
            there when all of them are.

    Raises:
        ConfigError: no run there, its log cannot be read, the environment cannot be made, `write`
            exists, or there is nothing to verify.
        SandboxUnavailable: the environment needs sandboxes, and none can be had here.
    """
    config = load_config(config_of(run, f"arl reverify {run}"), overrides)
    make_env = env_spec(config).maker()
    await specimen(config)
    report = Report(str(run), config.env.id)
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(contextlib.closing(EpisodeReader(run / "episodes.db")))
        ids = reader.episode_ids(untrained=True)
        if not ids:
            raise ConfigError(f"{run} holds no finished episode yet: nothing to verify")
        file = stack.enter_context(new_file(write, said=f"--write {write}")) if write else None
        async with services(config) as given:
            replayer = Replayer(
                make_env,
                given,
                timeout_s=config.rollout.episode_timeout_s,
                max_retries=config.rollout.max_retries,
            )

            async def worker(remaining: Iterator[str]) -> None:
                for episode_id in remaining:
                    recorded = reader.trajectory(episode_id)
                    found = await replayer.replay(recorded, reader.task(recorded.task_id))
                    report.add(found)
                    if file and found.reward is not None:
                        file.write(json.dumps(_line(found)) + "\n")
                    on_progress(1)

            await _all(worker, ids, config)
        return report.checked()


async def _all(worker: Callable[[Iterator[str]], Any], ids: list[str], config: Config) -> None:
    """Share `ids` out among as many workers as episodes are evaluated at once."""
    remaining = iter(ids)
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(config.eval.max_concurrent, len(ids))):
            workers.create_task(worker(remaining))


def _line(found: Replay) -> dict[str, Any]:
    recorded = found.recorded
    return {
        "episode": recorded.episode_id,
        "group": recorded.group_id,
        "task": recorded.task_id,
        "env": recorded.env_id,
        "outcome": recorded.outcome.value,
        "old": recorded.reward,
        "new": found.reward,
        "verifier": found.verifier,
    }
