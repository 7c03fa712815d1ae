"""Rewards by environment, where a run plays more than one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .figures import figures

_REWARD = re.compile(r"env/(.+)/reward/mean")


def env_rewards(metrics: Mapping[str, float]) -> dict[str, float]:
    """Mean reward of a training batch by environment; empty unless several played in it."""
    found = {m[1]: value for name, value in metrics.items() if (m := _REWARD.fullmatch(name))}
    return found if len(found) > 1 else {}


def step_line(metrics: Mapping[str, float], *, width: int) -> str:
    """ "math 0.52  code 0.31", cut to `width`; "" unless several environments played."""
    text = "  ".join(f"{id} {reward:.2f}" for id, reward in env_rewards(metrics).items())
    return text if len(text) <= width else f"{text[: width - 1]}…"


def trained_lines(envs: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    """Held-out reward before and after training, a line each: `envs` of `arl train --json`."""
    for env_id, reward in envs.items() if len(envs) > 1 else ():
        yield from figures("", f"{_shown(reward['before'])} → {_shown(reward['after'])} {env_id}")


def evaluated_lines(envs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Held-out reward, a line each: `envs` of `arl eval --json`."""
    for env_id, found in envs.items() if len(envs) > 1 else ():
        said = f"{found['reward']:.3f} over {found['num_tasks']:,} tasks of {env_id}"
        yield from figures("", said)


def _shown(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:.3f}"
