"""Whatever happens in whatever order: no batch is older than allowed, nothing is lost, nothing is
trained twice, and the books of all sides agree.

By default 120 schedules; ARL_EXHAUSTIVE=1 tries 100,000, on all cores. As a program it
tries as many as asked for: `python -m tests.controller.test_schedules SEED COUNT`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentgym_rl.controller import Buffer, buffer
from agentgym_rl.run import Loop
from agentgym_rl.storage import EpisodeLog, batched_commits
from agentgym_rl.storage.batched_commits import GroupCommit
from tests.exhaustive import EXHAUSTIVE

from .scene import STEPS, settings
from .under_way import thread
from .world import World

SCHEDULES = 120
UNTIL_FOUND = 400
EXHAUSTIVELY = 100_000
EXHAUSTIVE_S = 4 * 3600.0
ROOT = Path(__file__).parents[2]
FOUND = (AssertionError, ExceptionGroup, ValueError, KeyError)
"""What a schedule that goes wrong raises: most of it the books, the rest the code itself."""
CHUNK = 2_000
"""Schedules that hypothesis keeps in mind together."""
STEPS_EACH = 30

CONFIGS = [
    settings(0, None, 4),
    settings(1, None, 8),
    settings(1, None, 3),
    settings(1, None, 16),
    settings(2, 1, 8),
    settings(2, None, 16),
]
HOW = ["well", "well", "well", "well", "as others", "fails"]
moves = st.tuples(st.integers(-3, 2), st.sampled_from([9, 9, 1, 0]), st.sampled_from(HOW))
turns = st.integers(0, 16)
"""Of the event loop, after which the trainer asks."""
stragglers = st.fixed_dictionaries(
    {
        "groups": st.sampled_from([2, 2, 1, 3]),
        "more": st.sampled_from([0, 0, 1, -1]),
        "others": st.lists(moves, min_size=2, max_size=8),
        "ends": st.lists(st.integers(-3, 2), min_size=4, max_size=6),
        "asks": turns,
    }
)
ACCIDENTS: dict[str, Callable[[World], None]] = {
    "trainer lost": lambda world: world.lose_trainer(late=False),
    "trainer lost, its report late": lambda world: world.lose_trainer(late=True),
    "crash": lambda world: world.crash(),
    "crash, and one at the start": lambda world: world.crash(at_start=True),
    "crash, checkpoint lost": lambda world: world.crash(loses_checkpoint=True),
}


class Schedule(RuleBasedStateMachine):
    """Rules that nothing speaks against are taken at random."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @initialize(
        config=st.sampled_from(CONFIGS), held=st.integers(0, 2), late=st.none() | stragglers
    )
    def begin(self, config, held, late):
        self.world = World(config, held=held)
        if late:
            self.fall_behind(late)

    @rule(moves=st.lists(moves, min_size=2, max_size=8), asks=st.none() | turns)
    def go_on(self, moves, asks):
        """All that may begin does, some of it ends, and what can be trained is."""
        self.world.let_go()
        for _ in range(8):
            self.world.start()
        self.world.play(moves, asks=asks)
        self.world.ask()
        self.world.report()

    @rule(
        groups=st.integers(0, 4),
        moves=st.lists(moves, min_size=1, max_size=6),
        asks=st.none() | turns,
    )
    def play(self, groups, moves, asks):
        for _ in range(groups):
            self.world.start()
        self.world.play(moves, asks=asks)

    @precondition(lambda self: self.world.life.trainer.step + self.world.until_stale < STEPS)
    @rule(late=stragglers)
    def fall_behind(self, late):
        """Batches are trained, while the oldest groups play on, until these are too old or almost;
        then they end, after some of the others, and the trainer asks."""
        for _ in range(self.world.until_stale + late["more"]):
            self.world.train(but=late["groups"])
        for _ in range(4):
            self.world.start()
        self.world.play(late["others"], asks=None, of=slice(late["groups"], None))
        ends = [(pick, 9, "well") for pick in late["ends"]]
        self.world.play(ends, asks=late["asks"], of=slice(late["groups"]))

    @precondition(lambda self: self.world.hand is not None or self.world.is_ready)
    @rule(reports=st.booleans(), saves=st.booleans())
    def train(self, reports, saves):
        self.world.ask()
        if reports:
            self.world.report()
        if saves:
            self.world.checkpoint()

    @rule(kind=st.sampled_from([*ACCIDENTS]))
    def accident(self, kind):
        ACCIDENTS[kind](self.world)

    @rule(transactions=st.integers(1, 4), after=st.booleans())
    def arm(self, transactions, after):
        self.world.arm(transactions, after=after)

    @rule(first=st.integers(1, 3), count=st.integers(1, 2), after=st.booleans())
    def slow(self, first, count, after):
        self.world.hold(first, count, after=after)

    @precondition(lambda self: thread().holds)
    @rule()
    def let_go(self):
        self.world.let_go()

    @invariant()
    def books_agree(self):
        if self.world is not None:
            self.world.check()

    def teardown(self):
        if self.world is None:
            return
        try:
            if sys.exc_info()[0] is None:
                self.world.drain()
        finally:
            self.seen.update(self.world.seen)
            self.world.close()


def try_schedules(count: int, number: int, phases=(Phase.generate,)) -> None:
    """So many random schedules, the same for the same `number`."""
    options = hypothesis_settings(
        max_examples=count,
        stateful_step_count=STEPS_EACH,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(Schedule), settings=options)


def main(number: int, count: int) -> None:
    start = time.process_time()
    for done in range(0, count, CHUNK):
        try_schedules(min(CHUNK, count - done), number + done)
    seconds = time.process_time() - start
    seen = dict(Schedule.seen) | {"held up": thread().num_held}
    sys.stdout.write(f"{count} schedules in {seconds:.0f} s of CPU: {seen}\n")


@pytest.mark.slow
@pytest.mark.timeout(EXHAUSTIVE_S if EXHAUSTIVE else 300)
def test_schedules():
    """120, always the same; with ARL_EXHAUSTIVE=1 a hundred thousand, a process for each core."""
    if not EXHAUSTIVE:
        return try_schedules(SCHEDULES, 1)
    cores = os.cpu_count() or 1
    command = [sys.executable, "-m", "tests.controller.test_schedules"]
    parts = [
        subprocess.Popen([*command, str(part * EXHAUSTIVELY), str(EXHAUSTIVELY // cores)], cwd=ROOT)
        for part in range(cores)
    ]
    assert [part.wait(EXHAUSTIVE_S) for part in parts] == [0] * cores


# ---------------------------------------------------------------- planted bugs
def _too_old_by_one(patch):
    plain = Buffer.drop_stale

    def drop_stale(self):
        older = self.config.model_copy(update={"max_staleness": self.config.max_staleness + 1})
        config, self.config = self.config, older
        found = plain(self)
        self.config = config
        return found

    patch.setattr(Buffer, "drop_stale", drop_stale)


def _too_old_meanwhile(patch):
    plain = Buffer.drop_stale

    def drop_stale(self):
        found = [] if self.__dict__.pop("has_dropped", False) else plain(self)
        self.__dict__.update({"has_dropped": True} if found else {})
        return found

    patch.setattr(Buffer, "drop_stale", drop_stale)


def _one_group_too_many(patch):
    plain = buffer.capacity
    patch.setattr(buffer, "capacity", lambda **counts: plain(**counts) + 1)


def _leased_groups_wait_too(patch):
    plain = Buffer.restore

    def restore(self, version, *, leased, waiting, dropped):
        waiting = [*waiting, *(group for batch in leased.values() for group in batch)]
        plain(self, version, leased=leased, waiting=waiting, dropped=dropped)

    patch.setattr(Buffer, "restore", restore)


def _given_away_unrecorded(patch):
    async def lease(self, groups, step):
        pass

    patch.setattr(EpisodeLog, "lease", lease)


def _a_member_is_lost(patch):
    plain = EpisodeLog.add_member

    async def add_member(self, member, **task):
        if not member.episode_id.endswith("3-0"):
            await plain(self, member, **task)

    patch.setattr(EpisodeLog, "add_member", add_member)


def _told_while_another_is_written(patch):
    plain = GroupCommit.do

    async def do(self, statements, *, durably=False):
        if self._is_writing:
            done = asyncio.get_running_loop().create_future()
            done.add_done_callback(asyncio.Future.exception)  # nobody else asks for it
            self._waiting.append(batched_commits._Request(statements, durably, done))
        else:
            await plain(self, statements, durably=durably)

    patch.setattr(GroupCommit, "do", do)


def _the_budget_stays_away(patch):
    plain = Buffer.give_back

    def give_back(self, cause):
        plain(self, cause)
        self.running += 1

    patch.setattr(Buffer, "give_back", give_back)


def _late_reports_count(patch):
    async def interrupt(self):
        pass

    async def run(self):
        lives = []
        while True:
            lives.append(asyncio.create_task(self._live()))
            await self._others.wait()
            self._others.clear()

    patch.setattr(Loop, "interrupt", interrupt)
    patch.setattr(Loop, "run", run)


def _another_order_again(patch):
    plain = Buffer.take_again
    patch.setattr(Buffer, "take_again", lambda self, step: (plain(self, step) or [])[::-1] or None)


PLANTED = [
    *(_too_old_by_one, _too_old_meanwhile, _one_group_too_many, _leased_groups_wait_too),
    *(_given_away_unrecorded, _a_member_is_lost, _the_budget_stays_away, _late_reports_count),
    *(_told_while_another_is_written, _another_order_again),
]

FOUND_SOON = {_too_old_meanwhile: 3, _a_member_is_lost: 2}
"""The seeds of schedules that find a bug much sooner than those of the seed 1, which do so too."""


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bugs_are_found(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(FOUND):
        try_schedules(UNTIL_FOUND, FOUND_SOON.get(plant, 1))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
