"""One transaction serves all who wait; each is told of his own, and none of another's error."""

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from agentgym_rl.core import Task
from agentgym_rl.storage import EpisodeLog
from agentgym_rl.storage.batched_commits import GroupCommit
from tests.kit.cases import cases


class Held:
    """Transactions that begin when they may; the first of each is told."""

    def __init__(self) -> None:
        self.may, self.done = threading.Event(), []

    def run(self, statements, durably) -> None:
        assert self.may.wait(30)
        if any(name == "bad" for name, _ in statements):
            raise sqlite3.IntegrityError("bad")
        self.done.append(([name for name, _ in statements], durably))


async def ask(commits, *names, durably=()):
    """All of them at once."""
    tasks = [
        asyncio.ensure_future(commits.do([(name, ())], durably=name in durably)) for name in names
    ]
    await asyncio.sleep(0)
    return tasks


@cases("later", [("b", "c"), ("b", "c", "d")])
def test_who_comes_meanwhile_shares_the_next_transaction(later):
    held = Held()

    async def play() -> None:
        tasks = await ask(GroupCommit(held.run), "a", *later, durably="c")
        held.may.set()
        await asyncio.gather(*tasks)

    asyncio.run(play())
    assert held.done == [(["a"], False), ([*later], True)]


def test_nobody_is_told_before_it_is_done():
    held = Held()

    async def play() -> None:
        tasks = await ask(GroupCommit(held.run), "a", "b")
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        held.may.set()
        await asyncio.gather(*tasks)

    asyncio.run(play())


def test_an_error_is_of_the_request_that_made_it():
    held = Held()

    async def play() -> list[object]:
        tasks = await ask(GroupCommit(held.run), "a", "b", "bad", "c")
        held.may.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    *good, bad, last = asyncio.run(play())
    assert (good, last) == ([None, None], None)
    assert isinstance(bad, sqlite3.IntegrityError)
    assert [names for names, _ in held.done] == [["a"], ["b"], ["c"]]


def test_what_a_cancelled_caller_asked_for_is_done_before_the_next():
    held = Held()

    async def play() -> None:
        commits = GroupCommit(held.run)
        first, second = await ask(commits, "a", "b")
        second.cancel()
        held.may.set()
        await first
        await commits.do([("c", ())])

    asyncio.run(play())
    assert [name for names, _ in held.done for name in names] == ["a", "b", "c"]


def test_a_loop_that_ends_leaves_the_next_one_free():
    held = Held()
    commits = GroupCommit(held.run)

    async def leave() -> None:
        tasks = await ask(commits, "a", "b")
        held.may.set()
        for task in tasks:
            task.cancel()

    asyncio.run(leave())
    asyncio.run(commits.do([("c", ())]))
    assert held.done[-1][0][-1] == "c"


def test_members_are_on_disk_when_they_count(tmp_path, group):
    """Two hundred at once, each asked for by another connection when it is told."""
    path = tmp_path / "episodes.db"
    missing: list[str] = []

    async def add(log, reader, member) -> None:
        await log.add_member(member)
        found = reader.execute(
            "SELECT 1 FROM trajectories WHERE episode_id = ?", (member.episode_id,)
        )
        if found.fetchone() is None:
            missing.append(member.episode_id)

    async def play() -> None:
        members = [m for n in range(100) for m in group(f"g{n}", [0]).members]
        with closing(EpisodeLog(path)) as log, closing(sqlite3.connect(path)) as reader:
            async with asyncio.TaskGroup() as tasks:
                for member in members:
                    tasks.create_task(add(log, reader, member))

    asyncio.run(play())
    assert missing == []


def test_a_member_brought_twice_counts_when_it_is_there(tmp_path, group):
    path = tmp_path / "episodes.db"
    member = group("g", [0]).members[0]

    async def play() -> None:
        with closing(EpisodeLog(path)) as log, closing(sqlite3.connect(path)) as reader:
            first = asyncio.ensure_future(log.add_member(member))
            await asyncio.sleep(0)
            await log.add_member(member)
            assert reader.execute("SELECT count(*) FROM trajectories").fetchone() == (1,)
            await first

    asyncio.run(play())


def test_a_task_that_comes_with_a_member_has_an_index_if_one_is_given(tmp_path, group):
    path = tmp_path / "episodes.db"
    first, second = group("g", [0]).members

    async def play() -> None:
        with closing(EpisodeLog(path)) as log:
            await log.add_member(first, task=Task("unnumbered", 1))
            await log.add_member(second, task=Task("numbered", 2), task_index=5)

    asyncio.run(play())
    with closing(sqlite3.connect(path)) as reader:
        found = dict(reader.execute("SELECT task_id, task_index FROM tasks"))
    assert found == {"unnumbered": -1, "numbered": 5}


def test_a_group_whose_row_is_refused_harms_no_other(tmp_path, group):
    async def play() -> list[object]:
        with closing(EpisodeLog(tmp_path / "episodes.db")) as log:
            adding = [
                log.add_group(Task("t", 1), index, group(name, [0]))
                for index, name in enumerate(["a", "b", "b", "c"])
            ]
            found = await asyncio.gather(*adding, return_exceptions=True)
            assert log.num_groups == 3
        return found

    found = asyncio.run(play())
    assert [type(error) for error in found if error] == [sqlite3.IntegrityError]


@pytest.mark.parametrize("count", [1, 1300])
def test_none_is_left_behind(count):
    held = Held()
    held.may.set()

    async def play() -> None:
        await asyncio.gather(*await ask(GroupCommit(held.run), *map(str, range(count))))

    asyncio.run(play())
    assert [name for names, _ in held.done for name in names] == [*map(str, range(count))]
