"""The command `arl reverify`: it reads a run, plays its episodes again, and reports the
differences."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym_rl.config import Config, load_config
from agentgym_rl.core.errors import ConfigError
from agentgym_rl.rollout.player import env_spec, services, specimen
from agentgym_rl.runtime.atomic_file import new_file
from agentgym_rl.storage.episode_reader import EpisodeReader
from agentgym_rl.storage.run_folder import config_of

from .replay_episodes import Replay, Replayer


class Report:
    """The sum of all replays; changed rewards and failures are listed one by one."""

    def __init__(self, run: str, env: str) -> None:
        self._run, self._env = run, env
        self._outcomes: dict[str, Counter[str]] = {}
        self._changes: list[Replay] = []
        self._diverged: list[Replay] = []
        self._failures: list[Replay] = []
        self._old = self._new = 0.0

    def add(self, found: Replay) -> None:
        """Add the replay of an episode."""
        if found.reward is None:
            kind = "not_replayed"
            self._failures.append(found)
        else:
            kind = "changed" if found.changed else "unchanged"
            self._old += found.recorded.reward
            self._new += found.reward
        self._outcomes.setdefault(found.recorded.outcome.value, Counter())[kind] += 1
        if found.changed:
            self._changes.append(found)
        if found.divergence:
            self._diverged.append(found)

    def checked(self) -> dict[str, Any]:
        """Return the JSON object of `arl reverify --json`.

        Raises:
            ConfigError: no episode could be played again.
        """
        counts = {kind: self._count(kind) for kind in ("unchanged", "changed", "not_replayed")}
        replayed = counts["unchanged"] + counts["changed"]
        if not replayed:
            why = Counter(found.why for found in self._failures)
            (common, count), *_ = why.most_common(1)
            raise ConfigError(
                f"{self._run}: none of its {counts['not_replayed']} episodes could be verified; "
                f"{count} because: {_in_short(common)}"
            )
        return {
            "run": self._run,
            "env": self._env,
            "episodes": sum(counts.values()),
            **counts,
            "reward": {"old": self._old / replayed, "new": self._new / replayed},
            "outcomes": {name: dict(found) for name, found in sorted(self._outcomes.items())},
            "changes": [_change(found) for found in _ordered(self._changes)],
            "diverged": [
                _who(found) | {"what": found.divergence} for found in _ordered(self._diverged)
            ],
            "failures": [_who(found) | {"why": found.why} for found in _ordered(self._failures)],
        }

    def _count(self, kind: str) -> int:
        return sum(found[kind] for found in self._outcomes.values())


def _in_short(why: str) -> str:
    """Return the reason without its traceback: only the last line, which names the exception."""
    before, traceback, lines = why.partition("Traceback (most recent call last):")
    return before + lines.strip().splitlines()[-1] if traceback else why


def _ordered(found: list[Replay]) -> list[Replay]:
    """Sort replays by episode name: they arrive in the order in which they finished."""
    return sorted(found, key=lambda one: one.recorded.episode_id)


def _who(found: Replay) -> dict[str, Any]:
    recorded = found.recorded
    return {"episode": recorded.episode_id, "task": recorded.task_id, "env": recorded.env_id}


def _change(found: Replay) -> dict[str, Any]:
    return _who(found) | {
        "outcome": found.recorded.outcome.value,
        "old": found.recorded.reward,
        "new": found.reward,
        "verifier": found.verifier,
        "verifier_detail": found.verifier_detail,
    }


OnProgress = Callable[[int], None]
"""A callback that receives the number of episodes played again since its previous call."""


async def reverify(
    run: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    write: Path | None = None,
    on_progress: OnProgress = lambda count: None,
) -> dict[str, Any]:
    """Play every recorded episode of a run again in the environment as it is now.

    The actions are the recorded ones: no model is asked. The run is only read; it need not have
    finished. The report is the JSON object of `arl reverify --json`.

    Args:
        overrides: Dotted keys on top of the run's configuration.
        write: A new file for the rewards: one JSON object per episode that could be played. The
            file appears only when it is complete.

    Raises:
        ConfigError: there is no run, its log cannot be read, the environment cannot be made,
            `write` exists, or there is nothing to verify.
        SandboxUnavailable: the environment needs sandboxes, and none are available here.
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
    """Distribute `ids` to workers, as many as evaluation plays episodes at once."""
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
