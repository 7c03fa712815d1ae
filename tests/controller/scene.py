"""What a world is made of: its configuration, its folder, a log that dies, groups being played."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agentgym_rl.config import Config, RolloutConfig, TrainerConfig
from agentgym_rl.core import Row, Trajectory
from agentgym_rl.storage import EpisodeLog
from tests.kit.groups import make_row
from tests.kit.lives import Killed, Mortal

STEPS, B, SIZE, RANKS = 5, 2, 2, 2
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


@cache
def settings(max_staleness: int, lookahead: int | None, max_concurrent: int) -> Config:
    rollout = RolloutConfig(
        groups_per_batch=B,
        group_size=SIZE,
        max_staleness=max_staleness,
        lookahead=lookahead,
        max_concurrent=max_concurrent,
        should_accept="mixed_rewards",
    )
    return Config(
        rollout=rollout, trainer=TrainerConfig(num_ranks=RANKS, num_minibatches=1), steps=STEPS
    )


@cache
def empty_folder() -> Path:
    """A run's folder before its first start, to be copied: that is faster than to make it."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix="world-of-arl-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    EpisodeLog(folder / "episodes.db").close()
    limits = f"steps = {STEPS}\n[rollout]\ngroups_per_batch = {B}\n"  # as the ledger reads it
    (folder / "config.toml").write_text(limits)
    return folder


@cache
def row(oldest: int, newest: int) -> Row:
    return make_row([oldest, newest])


class Fragile(Mortal):
    """Once dead it writes nothing more."""

    is_dead = False
    restarted = EpisodeLog.restarted

    def __init__(self, path: Path, last: int, *, after: bool) -> None:
        super().__init__(path, last, after=after)
        self.dropping: set[str] = set()
        """Groups that it was told were dropped, before it has written that down or after."""

    def _run(self, actions, *, durably):
        if self.is_dead:
            raise Killed
        try:
            super()._run(actions, durably=durably)
        except Killed:
            self.is_dead = True
            raise

    async def drop(self, groups, cause):
        self.dropping.update(group.group_id for group in groups)
        await super().drop(groups, cause)


@dataclass(eq=False)
class Playing:
    """A group that was admitted in this life."""

    index: int
    since: int
    """The version served then."""
    todo: list[str]
    """Episodes that have not begun."""
    played: dict[str, Trajectory]

    @property
    def name(self) -> str:
        return f"g{self.index}"
