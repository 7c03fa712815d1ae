"""The buffer between rollout and trainer: admission, the staleness bound, batches.

Source of the admission law: AReaL (arXiv:2505.24298), extended by budgets that come back when a
group is dropped. All counts are groups; versions are published training batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentgym_rl.config import Config, RolloutConfig
from agentgym_rl.core import Group
from agentgym_rl.runtime import Changes
from agentgym_rl.storage import EpisodeLog, Recovered
from agentgym_rl.storage.run_files import Run

ADMISSION_TIMEOUT_S = BATCH_TIMEOUT_S = 3600.0


def capacity(
    *,
    version: int,
    batch: int,
    max_staleness: int,
    max_concurrent: int,
    running: int,
    accepted: int,
) -> int:
    """Return the number of groups that may start now; it may be negative.

    min(max_concurrent − running, (max_staleness + version + 1)·batch − (accepted + running)),
    with `max_staleness` as the lookahead η_target ≤ η.
    """
    pacing = (max_staleness + version + 1) * batch - (accepted + running)
    return min(max_concurrent - running, pacing)


@dataclass
class Buffer:
    """A buffer that counts groups in flight and hands out batches of B, oldest first.

    Each group is handed out once. `accepted` counts only groups that were or will be trained:
    a group that is dropped, filtered or failed gives its budget back.

    The buffer of a loop of one's own is that of a run's files: `runs.new`, or here a run whose
    files are temporary.

    >>> from agentgym_rl import Buffer, runs
    >>> overrides = {"steps": 10, "rollout.groups_per_batch": 4, "rollout.max_staleness": 2}
    >>> with runs.temporary(overrides=overrides) as run:
    ...     buffer = Buffer.of(run)
    ...     buffer.admit()  # one group is played
    ...     buffer.room  # of three batches that may be played or waiting, one group less
    11
    """

    config: RolloutConfig
    total_groups: int
    """The number of groups that the whole run trains: admission never starts more."""
    version: int = 0
    running: int = 0
    accepted: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    """The number of groups that gave their budget back, by cause: stale, filtered, an outcome."""
    sampled_tokens: int = 0
    """The number of tokens sampled so far, of all episodes, whether or not their groups train."""
    changes: Changes = field(default_factory=Changes)
    log: EpisodeLog | None = None
    """The log in which groups are leased and dropped; None: they are nowhere durable."""
    limit: int = field(init=False)
    """The maximum number of concurrent groups; code that raises it notifies `changes`."""
    _waiting: list[Group] = field(default_factory=list[Group])
    _leased: dict[int, list[Group]] = field(default_factory=dict[int, list[Group]])
    """The batches that lost ranks had received, to be handed out again."""

    def __post_init__(self) -> None:
        self.limit = self.config.admitted_groups

    @classmethod
    def of(cls, run: Run) -> Buffer:
        """Return the buffer of a run, in the state from which it continues."""
        return cls.continued(run.config, run.recovered, log=run.log)

    @classmethod
    def continued(cls, config: Config, found: Recovered, *, log: EpisodeLog) -> Buffer:
        """Return the buffer of a run in the state `found`, which is recorded in `log`."""
        total = config.steps * config.rollout.groups_per_batch
        buffer = cls(config.rollout, total_groups=total, log=log)
        buffer.restore(
            found.step, leased=found.leased, waiting=found.waiting, dropped=found.dropped
        )
        return buffer

    def restore(
        self,
        version: int,
        *,
        leased: Mapping[int, list[Group]],
        waiting: Sequence[Group],
        dropped: Mapping[str, int],
    ) -> None:
        """Continue from policy `version`, with the logged state of the run so far.

        The `leased` batches of steps from `version` on are handed out again, each at its step,
        before any waiting group: data sampled by a later version is younger than those steps.
        """
        assert not self.accepted + self.running, "only a fresh buffer is restored"
        self.version = version
        self._leased = dict(leased)
        self._waiting = list(waiting)
        self.dropped = Counter(dropped)
        again = sum(len(groups) for groups in self._leased.values())
        self.accepted = version * self.config.groups_per_batch + again + len(self._waiting)

    @property
    def capacity(self) -> int:
        """Return the number of groups that may start now."""
        return self._admitted(self.limit)

    @property
    def room(self) -> int:
        """Return the number of groups that could start now without `limit`."""
        return self._admitted(self.running + self.total_groups)

    def _admitted(self, max_concurrent: int) -> int:
        law = capacity(
            version=self.version,
            batch=self.config.groups_per_batch,
            max_staleness=self.config.target_staleness,
            max_concurrent=max_concurrent,
            running=self.running,
            accepted=self.accepted,
        )
        return min(law, self.total_groups - (self.accepted + self.running))

    async def wait_room(self) -> None:
        """Wait until a group may start.

        Raises:
            TimeoutError: there was no room for an hour.
        """
        await self.changes.wait_for(
            lambda: self.capacity >= 1,
            who="rollout",
            what="room under the staleness bound",
            timeout_s=ADMISSION_TIMEOUT_S,
            on="trainer",
        )

    def admit(self) -> None:
        """Take the budget of one group; call only while `capacity` ≥ 1."""
        assert self.capacity >= 1, "admission without capacity"
        self.running += 1

    async def admitted(self) -> None:
        """Wait until a group may start, and take its budget.

        Raises:
            TimeoutError: there was no room for an hour.
        """
        await self.wait_room()
        self.admit()

    def accept(self, group: Group) -> None:
        """Queue a running group for training, after it finished and was logged."""
        self.running -= 1
        self.accepted += 1
        self._waiting.append(group)
        self.changes.notify()

    def give_back(self, cause: str) -> None:
        """Return the budget of a running group that will not train, and count the cause."""
        self.running -= 1
        self.dropped[cause] += 1
        self.changes.notify()

    def withdraw(self) -> None:
        """Return the budget of a running group that has no episode yet."""
        self.running -= 1
        self.changes.notify()

    def publish(self, version: int) -> None:
        """Record that every engine has policy `version`."""
        self.version = version
        self.changes.notify()

    def drop_stale(self) -> list[Group]:
        """Remove waiting groups older than η (none under stale_policy "train")."""
        if self.config.stale_policy == "train":
            return []
        bound = self.config.max_staleness
        stale = [g for g in self._waiting if g.staleness(self.version) > bound]
        if stale:
            self._waiting = [g for g in self._waiting if g.staleness(self.version) <= bound]
            self.accepted -= len(stale)
            self.dropped["stale"] += len(stale)
            self.changes.notify()
        return stale

    @property
    def complete(self) -> bool:
        """Return whether a complete batch waits (stale groups included until they are dropped),
        or a leased batch is to be handed out again."""
        return self.version in self._leased or len(self._waiting) >= self.config.groups_per_batch

    @property
    def is_starved(self) -> bool:
        """Return whether the trainer waits for groups: it neither has a batch nor finds one."""
        return self.accepted < (self.version + 1) * self.config.groups_per_batch

    def lease_again(self, batches: Mapping[int, list[Group]]) -> None:
        """Set the batches, by step, that were handed out and are to be handed out again."""
        self._leased = dict(batches)

    def comes_again(self, step: int) -> bool:
        """Return whether batch `step` is to be handed out again because its ranks are lost."""
        return step in self._leased

    def take_again(self, step: int) -> list[Group] | None:
        """Take batch `step` as it was handed out before, in its order; None if there is none."""
        return self._leased.pop(step, None)

    def take(self) -> list[Group]:
        """Take the next batch: the B oldest groups, in their order of admission.

        Call `drop_stale` first, and `take` only when `complete`. With this order a batch depends
        on the order in which groups finished as little as possible.
        """
        assert self.complete, "no complete batch waits"
        count = self.config.groups_per_batch
        self._waiting.sort(key=lambda g: (-g.staleness(self.version), g.index))
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def batch(self, *, timeout_s: float = BATCH_TIMEOUT_S) -> list[Group]:
        """Wait for the next batch and take it, leased in the log: none of its groups is older than
        the staleness bound. Groups that have become too old are dropped.

        Raises:
            TimeoutError: no batch was complete in time.
        """
        step = self.version
        while True:
            await self.changes.wait_for(
                lambda: self.complete, who="trainer", what=f"batch {step}", timeout_s=timeout_s
            )
            if (groups := await self.lease(step)) is not None:
                return groups

    async def lease(self, step: int) -> list[Group] | None:
        """Take batch `step`, once it is `complete`, and lease it in the log: the one that was
        handed out before, or the oldest groups that are fresh enough. Return None if too few groups
        are left."""
        if (again := self.take_again(step)) is not None:
            return again
        while stale := self.drop_stale():
            if self.log is not None:
                await self.log.drop(stale, "stale")  # an equally old group may end meanwhile
        if step != self.version or not self.complete:
            return None
        groups = self.take()
        if self.log is not None:
            await self.log.lease(groups, step)
        return groups
