"""A run under any schedule of episodes, batches, losses and crashes, with books of its own.

Log, buffer, controller and groups are the real ones, over a folder in memory; who plays, who
trains, when somebody dies and when a write takes long is decided from outside
(`test_schedules.py`). The books hold what others were told, which no crash may take back; every
step is compared with them.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from arl_audit.exactly_once import audit_ledger

from agentgym_rl.config import Config
from agentgym_rl.core import BatchShard, Outcome, StepReport, Task, Trajectory
from agentgym_rl.storage import EpisodeLog, newest_checkpoint
from agentgym_rl.storage.checkpoints import lineage_after
from tests.kit.lives import Killed, Life

from .scene import MEMORY, RANKS, SIZE, STEPS, B, Fragile, Playing, empty_folder, row
from .under_way import Step, UnderWay, loop, thread

PATIENCE = 24
"""Turns of the event loop that the trainer waits for a batch."""


class World:
    """The run, and the books. Methods take one step each; one in which the process dies ends with
    the process started again. While the thread is held up they may not end: others do meanwhile."""

    def __init__(self, config: Config, *, held: int = 0) -> None:
        """`held`: so many groups, the oldest, are played only when there are no others."""
        self.config = config
        self._held = held
        self.run = Path(tempfile.mkdtemp(dir=MEMORY, prefix="world-of-arl-"))
        shutil.copytree(empty_folder(), self.run, dirs_exist_ok=True)
        self._reader = sqlite3.connect(self.run / "episodes.db", isolation_level=None)
        self.members: dict[str, Trajectory] = {}
        """Episodes that are on disk, as their players were told."""
        self.brought: dict[str, Trajectory] = {}
        """All that were ever brought, last time."""
        self.ended: dict[str, str] = {}
        """Groups that are finished: why they do not train; "" if they do."""
        self.batches: dict[int, list[str]] = {}
        """As ranks were given them."""
        self.seen: Counter[str] = Counter()
        """What happened, to see that schedules are worth something."""
        self._last_version = 0
        """The latest that any life had."""
        self._rewards = itertools.count(1)
        self._stack = ExitStack()
        self._under_way = UnderWay()
        self._open()

    def close(self) -> None:
        self._end()
        self._reader.close()
        shutil.rmtree(self.run)

    # ------------------------------------------------------------ what happens
    def start(self) -> None:
        """The next group is admitted, if one may be."""
        if self.life.buffer.capacity < 1:
            return
        index = next(self.life.indices)
        assert f"g{index}" not in self.ended, f"g{index} is played again"
        self.life.buffer.admit()
        there = dict(self.life.found.begun.get(f"g{index}", {}))
        todo = [name for name in _members(f"g{index}") if name not in there]
        playing = Playing(index, self.version, todo, there)
        self.playing[playing.name] = playing
        if not todo:
            self._do(self._finish(playing))

    def play(
        self, moves: Sequence[tuple[int, int, str]], *, asks: int | None, of: slice | None = None
    ) -> None:
        """Episodes end, all at once: of which group, how many versions ago they began, and how
        they went. `asks`: so many turns later, or as soon as there is a batch, the trainer asks
        for it. `of`: which groups, counted from the oldest, if there are any; None: those that are
        not held."""
        of = of or slice(self._held, None)
        steps: list[Step] = []
        for pick, lag, how in moves:
            able = [playing for playing in self.playing.values() if playing.todo]
            if able := able[of] or able:
                playing = able[pick % len(able)]
                steps.append(self._play(playing, playing.todo.pop(0), lag, how))
        if asks is not None:
            steps.append(self._ask_later(asks))
        self._do(*steps)

    def ask(self) -> None:
        """The ranks ask for their batch; nothing else happens, but what is under way."""
        step = self.life.trainer.step
        if not self.is_ready:
            return
        waiting = self._waiting()
        fresh = [g for g in waiting if self._age(g, step) <= self.config.rollout.max_staleness]
        expected = self.batches.get(step) or fresh[:B]
        if self._do(self._ask()):
            assert self.hand == (expected if len(expected) == B else None)

    def report(self) -> None:
        """The batch in hand is trained."""
        if self.hand is not None:
            self._do(self._report(self._train(), self.life.ranks.life))

    def checkpoint(self) -> None:
        """The trainer saves what it has."""
        if self.last is None or self._is_busy:
            return
        path, self.last = self.life.trainer.checkpoint(self.last), None
        self._do(self.life.log.checkpointed(self.life.trainer.step, str(path)))

    def lose_trainer(self, *, late: bool) -> None:
        """The ranks are gone, and others come; `late`: their last report is under way."""
        if self._is_replaced:
            return
        ranks, report = self.life.ranks, None
        life = ranks.life
        if late and self.hand is not None:
            report = self._train()
        self.hand = self.last = None

        async def replace() -> None:
            self._is_replaced = True
            await self.life.replace_trainer()
            self._is_replaced = False
            if report is not None:
                again = await ranks.report(report, life=life)
                assert again is None, "a report of ranks that were replaced counts"

        self._do(replace())

    def crash(self, *, at_start: bool = False, loses_checkpoint: bool = False) -> None:
        """The process dies now, and is started again; it may die at its very start, once more, or
        the newest checkpoint may turn out to be broken."""
        newest = newest_checkpoint(self.run / "checkpoints")
        if loses_checkpoint and newest is not None:
            shutil.rmtree(newest)
        self._end()
        self.seen["crashes"] += 1
        if at_start:
            log = Fragile(self.run / "episodes.db", 1, after=self.seen["crashes"] % 2 == 0)
            with ExitStack() as stack, pytest.raises(Killed):
                loop().run_until_complete(self._opened(log, stack))
        self._open()

    def arm(self, transactions: int, *, after: bool) -> None:
        """The process will die in so many transactions from now, before or after the last."""
        self.life.log.left, self.life.log.after = transactions, after

    def hold(self, first: int, count: int, *, after: bool) -> None:
        """The log will be slow: so many writes, the `first` from now on, end when they are let go,
        and what comes meanwhile waits for them."""
        thread().hold(first, count, after=after)

    def let_go(self) -> None:
        """What is held up goes on."""
        thread().let_go()
        self._do()

    def train(self, *, but: int) -> None:
        """All groups that may be played are, `but` the so many oldest if there are others, and
        what can be trained then."""
        while self.life.buffer.capacity >= 1:
            self.start()
        groups = len(self.playing)
        groups = groups - but if groups > but else groups
        self.play([(0, 9, "well")] * SIZE * groups, asks=None, of=slice(but, None))
        self.ask()
        self.report()

    def drain(self) -> None:
        """Go on without accidents until the run is finished; then all must have come out right."""
        self.life.log.left = 0
        thread().hold(0, 0, after=False)
        self.let_go()
        for _ in range(8 * STEPS):
            if self.life.trainer.step == STEPS and self.hand is None:
                break
            self.train(but=self._held)
        assert self.life.trainer.step == STEPS, "the run stands still"
        trained = list(itertools.chain.from_iterable(self.batches[n] for n in range(STEPS)))
        assert sorted(trained) == sorted(n for n, cause in self.ended.items() if not cause)
        assert {f"g{n}" for n in range(len(self.ended))} == set(self.ended), "some were passed over"
        chain = ""
        for step in range(STEPS):
            chain = lineage_after(chain, step, self.batches[step])
        assert self.life.trainer.lineage == chain, "the weights were trained on something else"
        self.checkpoint()
        ledger = audit_ledger(self.run)
        assert (ledger["faults"], ledger["finished"]) == ([], True)

    # ------------------------------------------------------------ what must hold
    def check(self) -> None:
        """After every step: counters, budgets and versions are those of the books."""
        buffer, rollout = self.life.buffer, self.config.rollout
        causes = Counter(self.ended.values())
        dropping = [name for name in self.life.log.dropping if not self.ended[name]]
        causes.update({"": -len(dropping), "stale": len(dropping)})
        accepted, running = causes.pop("", 0), len(self.playing)
        assert (buffer.accepted, buffer.running) == (accepted, running)
        assert buffer.dropped == +causes
        assert buffer.version == self.version
        lookahead = rollout.max_staleness if rollout.lookahead is None else rollout.lookahead
        assert buffer.capacity == min(
            rollout.max_concurrent - running,
            (lookahead + self.version + 1) * B - accepted - running,
            STEPS * B - accepted - running,
        )

    def _check_batch(self, step: int, names: Sequence[str]) -> None:
        """A batch that nobody was given before."""
        assert len(set(names)) == B, f"batch {step} is not of {B} groups: {names}"
        given = {name for batch in self.batches.values() for name in batch}
        assert not given & set(names), f"batch {step} has groups of others: {names}"
        for name in names:
            assert self.ended[name] == "", f"{name} was dropped: {self.ended[name]}"
            age = self._age(name, step)
            assert age <= self.config.rollout.max_staleness, f"{name} is {age} versions old"

    def _check_opened(self, before: dict[str, Playing]) -> None:
        """What a process finds on disk, beside what others were told."""
        found = self.life.found
        query = "SELECT group_id, status, cause FROM groups"
        causes = {name: cause for name, _, cause in self._reader.execute(query)}
        assert set(self.ended) <= set(causes), "groups are lost"
        for name in set(causes) - set(self.ended):  # their process died before it could say so
            assert name in before, f"who finished {name}?"
            assert not before[name].todo, f"who finished {name}?"
            self.ended[name] = causes[name]
        self._learn_stale()
        assert causes == self.ended
        for episode in itertools.chain.from_iterable(g.values() for g in found.begun.values()):
            name = episode.episode_id
            known = self.members.setdefault(name, self.brought[name])
            assert episode.reward == known.reward, f"{name} is another one"
        open_members = {n for n in self.members if n.partition("-")[0] not in self.ended}
        assert open_members == {name for group in found.begun.values() for name in group}
        for step, batch in found.leased.items():
            names = [group.group_id for group in batch]
            if step not in self.batches:  # its process died before it could give it to anybody
                self._check_batch(step, names)
                self.batches[step] = names
            assert names == self.batches[step]
        assert sorted(found.leased) == [n for n in sorted(self.batches) if n >= found.step]
        assert {group.group_id for group in found.waiting} == set(self._waiting())

    # ------------------------------------------------------------ how
    def _do(self, *steps: Step) -> bool:
        """Whether all of them have ended, and the process lives."""
        begun = [self._under_way.begin(step) for step in steps]
        if self._under_way.go_on():
            return all(step.done() for step in begun)
        self.seen["deaths"] += 1
        self._end()
        self._open()
        return False

    def _end(self) -> None:
        """The process is gone."""
        self.seen["ends meanwhile"] += thread().holds
        self.life.log.is_dead = True
        self._under_way.end()
        self._stack.close()

    def _open(self) -> None:
        """The process starts."""
        self._stack = ExitStack()
        log = Fragile(self.run / "episodes.db", 0, after=False)
        loop().run_until_complete(self._opened(log, self._stack))
        before = getattr(self, "playing", {})
        self.playing: dict[str, Playing] = {}
        self.hand: list[str] | None = None
        """The batch that the ranks have."""
        self.last: StepReport | None = None
        """Of the weights that the ranks have, unless they are saved."""
        self._busy: set[int] = set()
        """Lives of ranks that ask or report."""
        self._is_replaced = False
        """Whether ranks are gone, and others have not begun."""
        self.version = self.life.trainer.step
        self._check_opened(before)

    async def _opened(self, log: EpisodeLog, stack: ExitStack) -> None:
        stack.enter_context(closing(log))
        self.life = Life(self.config, self.run, log, stack)

    async def _play(self, playing: Playing, name: str, lag: int, how: str) -> None:
        oldest = max(playing.since, self.version - lag)
        episode = Trajectory(
            episode_id=name,
            group_id=playing.name,
            task_id=f"t{playing.index}",
            outcome=Outcome.INFRA_ERROR if how == "fails" else Outcome.COMPLETED,
            reward=float(-playing.index if how == "as others" else next(self._rewards)),
            rows=[row(oldest, self.version)],
        )
        self.brought[name] = episode
        if episode.outcome.trains:
            await self.life.log.add_member(episode)
            self.members[name] = episode
        playing.played[name] = episode
        if len(playing.played) == SIZE:
            await self._finish(playing)

    async def _finish(self, playing: Playing) -> None:
        members = [playing.played[name] for name in _members(playing.name)]
        task = Task(f"t{playing.index}", playing.index)
        cause = await self.life.finished.finish(playing.name, task, playing.index, members)
        failed = any(not member.outcome.trains for member in members)
        alike = len({member.reward for member in members}) == 1
        assert cause == ("infra_error" if failed else "filtered" if alike else "")
        self.ended[playing.name] = cause
        del self.playing[playing.name]
        self.seen[cause or "groups"] += 1

    @property
    def _is_busy(self) -> bool:
        return self._is_replaced or self.life.ranks.life in self._busy

    @contextmanager
    def _being_busy(self) -> Iterator[int]:
        life = self.life.ranks.life
        self._busy.add(life)
        try:
            yield life
        finally:
            self._busy.discard(life)

    @property
    def until_stale(self) -> int:
        """Batches after which groups that begin now are too old."""
        return self.config.rollout.max_staleness + 1

    @property
    def is_ready(self) -> bool:
        """Whether the ranks would be given a batch at once, unless groups are too old."""
        step = self.life.trainer.step
        if step >= STEPS or self._is_busy or self.hand is not None:
            return False
        return step in self.batches or (self.version == step and len(self._waiting()) >= B)

    async def _ask_later(self, turns: int) -> None:
        for turn in range(PATIENCE):
            if turn >= turns and self.is_ready:
                return await self._ask()
            await asyncio.sleep(0)

    async def _ask(self) -> None:
        with self._being_busy() as life:
            ranks, step = self.life.ranks, self.life.trainer.step
            first = await ranks.batch(step, 0)
            self._learn_stale()
            if first is None:  # groups were too old: the next to ask would wait for others
                assert life != ranks.life or step not in self.batches
                return
            self._is_given(step, list(dict.fromkeys(first.group_ids)))
            if life != ranks.life:
                return
            shards = [first, *[await ranks.batch(step, r) for r in range(1, RANKS)]]
            self._check_shards(step, shards)
            self.hand = self.batches[step]

    def _is_given(self, step: int, names: list[str]) -> None:
        if step in self.batches:
            self.seen["batches again"] += 1
            assert names == self.batches[step], f"batch {step} is another one"
        else:
            self._check_batch(step, names)
            self.batches[step] = names

    def _check_shards(self, step: int, shards: Sequence[BatchShard]) -> None:
        assert [shard.step for shard in shards] == [step, step]
        assert shards[0].group_ids == shards[1].group_ids
        rewards = [self.members[m].reward for name in self.batches[step] for m in _members(name)]
        assert list(shards[0].rewards) == rewards, "members are missing, or others"
        rows = sum(len(minibatch) for shard in shards for minibatch in shard.minibatches)
        assert rows == B * SIZE

    def _train(self) -> StepReport:
        assert self.hand is not None
        names, self.hand = self.hand, None
        return self.life.trainer.train(names)

    async def _report(self, report: StepReport, life: int) -> None:
        with self._being_busy():
            found = await self.life.ranks.report(report, life=life)
        is_lost = life != self.life.ranks.life
        if found is None:
            assert is_lost, "a report does not count"
            return
        self.version = max(self.version, report.version)
        self._last_version = max(self._last_version, self.version)
        if not is_lost:
            self.last = report

    def _learn_stale(self) -> None:
        """Which groups the log calls stale; they must be."""
        query = "SELECT group_id FROM groups WHERE cause = 'stale'"
        for (name,) in self._reader.execute(query).fetchall():
            if self.ended[name] != "stale":
                assert name in self._waiting(), f"{name} was in a batch"
                age = self._age(name, self._last_version)
                assert age > self.config.rollout.max_staleness, name
                self.ended[name] = "stale"
                self.seen["stale"] += 1

    def _waiting(self) -> list[str]:
        """Groups that are in no batch, the oldest first."""
        given = {name for batch in self.batches.values() for name in batch}
        names = [n for n, cause in self.ended.items() if not cause and n not in given]
        return sorted(names, key=lambda name: (-self._age(name, self.version), int(name[1:])))

    def _age(self, name: str, step: int) -> int:
        versions = [self.members[m].rows[0].policy_versions.tolist() for m in _members(name)]
        return step - min(v for of in versions for v in of if v >= 0)


def _members(group: str) -> list[str]:
    return [f"{group}-{number}" for number in range(SIZE)]
