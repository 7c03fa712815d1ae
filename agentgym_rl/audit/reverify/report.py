"""What all replays together say."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agentgym_rl.core.errors import ConfigError

from .replay import Replay


class Report:
    """Adds replays up; changed rewards and failures are listed one by one."""

    def __init__(self, run: str, env: str) -> None:
        self._run, self._env = run, env
        self._outcomes: dict[str, Counter[str]] = {}
        self._changes: list[Replay] = []
        self._diverged: list[Replay] = []
        self._failures: list[Replay] = []
        self._old = self._new = 0.0

    def add(self, found: Replay) -> None:
        """Count an episode in."""
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
        """The JSON object of `arl reverify --json`.

        Raises:
            ConfigError: nothing could be played again.
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
    """The same without a traceback: what was raised is its last line."""
    before, traceback, lines = why.partition("Traceback (most recent call last):")
    return before + lines.strip().splitlines()[-1] if traceback else why


def _ordered(found: list[Replay]) -> list[Replay]:
    """By name: they came as they finished."""
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
