"""The data frames of pandas that have the episodes of a run or an evaluation, a row each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentgym_rl.core import ConfigError, Trajectory


def episodes_frame(episodes: Iterable[Trajectory]) -> Any:
    """Return a data frame of episodes, whose index is their ids. Metrics that an episode does not
    have are NaN.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            ".episodes is a data frame of pandas, which is not installed: pip install pandas\n"
            "Without it: agentgym_rl.storage.EpisodeReader reads episodes.db of the run's folder"
        ) from error
    return pandas.DataFrame([_row(episode) for episode in episodes]).set_index("id")


def _row(episode: Trajectory) -> dict[str, Any]:
    versions = [int(it) for row in episode.rows for it in row.policy_versions if it >= 0]
    fixed = {
        "id": episode.episode_id,
        "group": episode.group_id,
        "task": episode.task_id,
        "env": episode.env_id,
        "outcome": episode.outcome.value,
        "reward": episode.reward,
        "turns": episode.num_turns,
        "sampled_tokens": episode.num_sampled,
        "version": max(versions, default=None),
        "question": _text(episode, "user", first=True),
        "answer": _text(episode, "assistant", first=False),
        "error": episode.error,
    }
    return fixed | {name: value for name, value in episode.metrics.items() if name not in fixed}


def _text(episode: Trajectory, role: str, *, first: bool) -> str:
    """Return the first or the last message of a role."""
    found = [str(it.get("content") or "") for it in episode.messages if it.get("role") == role]
    return (found[0] if first else found[-1]) if found else ""
