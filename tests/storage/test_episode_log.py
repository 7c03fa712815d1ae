"""The durable log: what is written is there after a kill, and statuses follow a group's life."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace

import pytest

from agentgym_rl.core import ConfigError, StepReport, StorageError, Task
from agentgym_rl.storage import EpisodeLog, EpisodeReader


def statuses(path) -> dict[str, tuple]:
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT group_id, status, cause, step FROM groups").fetchall()
    db.close()
    return {row[0]: row[1:] for row in rows}


async def live_through(path, group) -> EpisodeLog:
    log = EpisodeLog(path)
    task = Task("t", 1)
    groups = [group(name, [0]) for name in ("a", "b", "c")]
    for index, member in enumerate(groups):
        await log.add_group(task, index, member)
    await log.add_group(task, 3, group("d", [0]), dropped="filtered")
    await log.drop(groups[:1], "stale")
    await log.lease(groups[1:], step=4)
    return log


def test_a_log_of_before_tasks_had_weights_goes_on(tmp_path, group):
    path = tmp_path / "episodes.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "CREATE TABLE tasks (task_id TEXT PRIMARY KEY, task_index INTEGER NOT NULL, "
            "seed INTEGER NOT NULL, split TEXT NOT NULL, data TEXT NOT NULL)"
        )
        db.execute("INSERT INTO tasks VALUES ('old', 0, 1, 'train', '{}')")
        db.commit()
    with closing(EpisodeLog(path)) as log:
        asyncio.run(log.add_group(Task("new", 2, weight=0.5), 1, group("a", [0])))
    with closing(sqlite3.connect(path)) as db:
        assert dict(db.execute("SELECT task_id, weight FROM tasks")) == {"old": 1.0, "new": 0.5}


def test_a_groups_life(tmp_path, group):
    path = tmp_path / "episodes.db"

    async def play() -> None:
        log = await live_through(path, group)
        assert statuses(path)["b"] == ("leased", "", 4)
        await log.publish(StepReport(4, 5, {}, [], ["b", "c"]), {})
        assert statuses(path)["b"] == ("leased", "", 4)
        await log.checkpointed(5, "checkpoints/step-5")
        log.close()

    asyncio.run(play())
    assert statuses(path) == {
        "a": ("dropped", "stale", None),
        "b": ("consumed", "", 4),
        "c": ("consumed", "", 4),
        "d": ("dropped", "filtered", None),
    }


def test_trajectories_come_back_as_they_went_in(tmp_path, group):
    async def play() -> None:
        log = await live_through(tmp_path / "episodes.db", group)
        leased = log.trajectories(step=4)
        assert [t.episode_id for t in leased] == ["b-0", "b-1", "c-0", "c-1"]
        assert leased[0].rows[0].tokens.tolist() == [0, 1, 2, 3]
        log.close()

    asyncio.run(play())


def test_a_member_that_gets_a_group_reward_is_recorded_anew(tmp_path, group):
    path, found = tmp_path / "episodes.db", group("a", [0])
    paid = [
        replace(member, reward=member.reward + 0.5, group_reward=0.5) for member in found.members
    ]

    async def play() -> None:
        with closing(EpisodeLog(path)) as log:
            await log.add_member(found.members[0])
            await log.add_group(Task("t", 1), 0, replace(found, members=paid))

    asyncio.run(play())
    with closing(EpisodeReader(path)) as reader:
        assert reader.rewards("a") == {"a-0": (0.5, 0.5, 0.5), "a-1": (1.5, 1.5, 0.5)}
        assert reader.trajectory("a-0").group_reward == 0.5


def test_a_task_is_read_as_it_was_played(tmp_path, group):
    path, task = tmp_path / "episodes.db", Task("t", 7, {"question": "?"}, "eval", 0.5)
    with closing(EpisodeLog(path)) as log:
        asyncio.run(log.add_group(task, 3, group("a", [0])))
    with closing(EpisodeReader(path)) as reader:
        assert reader.task("t") == task
        with pytest.raises(ConfigError, match="task u is not in"):
            reader.task("u")


def test_a_glance_has_the_texts_the_versions_and_the_task(tmp_path, group):
    path, found = tmp_path / "episodes.db", group("a", [3])
    said = [{"role": "user", "content": "?"}]
    first, second = found.members
    members = [replace(first, messages=said, reward_parts={"correct": 1.0}), second]
    with closing(EpisodeLog(path)) as log:
        asyncio.run(log.add_member(members[0]))
        with closing(EpisodeReader(path)) as reader:
            ((_, _, task),) = reader.glances([1])
            assert task is None, "it is logged with the group"
        asyncio.run(
            log.add_group(Task("t", 1, {"answer": "!"}), 0, replace(found, members=members))
        )
    with closing(EpisodeReader(path)) as reader:
        (row, glance, task), (other, _, _) = reader.glances([1, 2, 99])
    assert (row, other, glance.messages, glance.reward_parts) == (1, 2, said, {"correct": 1.0})
    assert (glance.versions, json.loads(task)) == ([*first.trained_versions], {"answer": "!"})


def test_rewards_of_zero_are_read(tmp_path, group):
    path = tmp_path / "episodes.db"
    with closing(EpisodeLog(path)) as log:
        asyncio.run(log.add_group(Task("t", 1), 0, group("a", [0])))
    with closing(EpisodeReader(path)) as reader:
        assert reader.rewards("a") == {"a-0": (0.0, 0.0, None), "a-1": (1.0, 1.0, None)}


def test_what_was_logged_survives_a_kill(tmp_path):
    program = textwrap.dedent(
        """
        import asyncio, os, signal, sys
        from agentgym_rl.controller.buffer import Group
        from agentgym_rl.storage.episode_log import EpisodeLog
        from agentgym_rl.core.task import Task
        from agentgym_rl.core.trajectory import Outcome, Trajectory
        async def main():
            log = EpisodeLog(sys.argv[1])
            member = Trajectory("e", "g", "t", Outcome.COMPLETED, 1.0, [])
            await log.add_group(Task("t", 1), 0, Group("g", "t", [member]))
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
        """
    )
    path = tmp_path / "episodes.db"
    done = subprocess.run([sys.executable, "-c", program, str(path)], timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    assert statuses(path) == {"g": ("waiting", "", None)}


def test_a_reader_sees_a_live_run(tmp_path, group):
    path = tmp_path / "episodes.db"

    async def play() -> None:
        log = await live_through(path, group)
        with closing(EpisodeReader(path)) as reader:
            assert reader.episode_ids() == ["b-0", "b-1", "c-0", "c-1"]
            await log.publish(StepReport(4, 5, {}, [], ["b", "c"]), {})
            await log.add_group(Task("t", 1), 4, group("e", [0]))
            assert reader.steps_published == 1
            assert reader.episode_ids(untrained=True)[-1] == "e-1"
            assert reader.trajectory("c-1").rows[0].tokens.tolist() == [0, 1, 2, 3]
        log.close()

    asyncio.run(play())


def test_a_reader_leaves_nothing_behind(tmp_path, group):
    path = tmp_path / "episodes.db"
    asyncio.run(live_through(path, group)).close()
    before = path.read_bytes()
    with closing(EpisodeReader(path)) as reader:
        assert len(reader.episode_ids()) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["episodes.db"]
    assert path.read_bytes() == before


def test_a_reader_has_facts_of_chosen_episodes_the_newest_first(tmp_path, group):
    path = tmp_path / "episodes.db"
    asyncio.run(live_through(path, group)).close()
    with closing(EpisodeReader(path)) as reader:
        every = reader.facts(limit=99)
        assert [fact.row for fact in every] == [8, 7, 6, 5, 4, 3, 2, 1]
        assert (every[0].episode_id, every[0].group_id, every[0].outcome) == (
            "d-1",
            "d",
            "completed",
        )
        assert reader.facts(limit=2) == every[:2]
        assert reader.facts(above=2, below=5, limit=99) == every[4:6]
        assert reader.facts(group_id="b", limit=99) == every[4:6]
        assert reader.facts(episode_id="b-0", limit=99) == every[5:6]
        assert reader.facts(episode_id="b-0", group_id="a", limit=99) == []


def test_a_reader_cannot_write(tmp_path, group):
    path = tmp_path / "episodes.db"
    asyncio.run(live_through(path, group)).close()
    with closing(EpisodeReader(path)) as reader, pytest.raises(sqlite3.OperationalError):
        reader._db.execute("DELETE FROM groups")


def test_a_record_of_another_version_is_named(tmp_path, group):
    path = tmp_path / "episodes.db"
    asyncio.run(live_through(path, group)).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE trajectories SET data = x'80'")
    with (
        closing(EpisodeReader(path)) as reader,
        pytest.raises(ConfigError, match=r"b-0 in .*other"),
    ):
        reader.trajectory("b-0")


def test_a_full_disk_is_logged_once_with_the_file_and_costs_nothing_that_was_there(
    tmp_path, group, caplog
):
    path = tmp_path / "episodes.db"

    async def play() -> None:
        with closing(await live_through(path, group)) as log:
            ((pages,),) = log._db.execute("PRAGMA page_count")
            log._db.execute(f"PRAGMA max_page_count={pages}")  # no room for one more
            large = group("large", [0] * 99_999)
            for _ in range(2):
                with pytest.raises(StorageError, match=r"episodes\.db cannot be written.*is full"):
                    await log.add_group(Task("t", 1), 9, large)
            log._db.execute("PRAGMA max_page_count=100000")
            await log.add_group(Task("t", 1), 9, group("later", [0]))

    asyncio.run(play())
    assert caplog.text.count("the run ends") == 1
    found = statuses(path)
    assert found["b"] == ("leased", "", 4)
    assert found["later"] == ("waiting", "", None)


def test_every_restart_of_ranks_has_a_number_of_its_own(tmp_path):
    path = tmp_path / "episodes.db"
    with closing(EpisodeLog(path)) as log:
        assert log.begin(step=0, checkpoint="", num_ranks=2) == 0
        for number in (1, 2):
            again = log.restarted(step=0, checkpoint="step-0", num_ranks=2)
            assert asyncio.run(again) == number
    with closing(EpisodeLog(path)) as log:
        assert log.begin(step=0, checkpoint="", num_ranks=1) == 3
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT incarnation, checkpoint, num_ranks FROM incarnations").fetchall()
    assert found == [(0, "", 2), (1, "step-0", 2), (2, "step-0", 2), (3, "", 1)]


@pytest.mark.parametrize("older", ["", "no values", "no columns"])
def test_an_episode_has_the_same_facts_in_the_logs_of_earlier_versions(tmp_path, group, older):
    """Those read the record, as they have no columns for them, or no values in those."""
    path, played = tmp_path / "episodes.db", group("a", [0])
    first, second = played.members
    counted = {"forks": 2.0, "forks_edited": 2.0, "forks_model": 0.0, "turns": 3.0}
    played = replace(played, members=[replace(first, env_id="math", metrics=counted), second])

    async def play() -> None:
        with closing(EpisodeLog(path)) as log:
            await log.add_group(Task("t", 1), 0, played)

    asyncio.run(play())
    with closing(sqlite3.connect(path)) as db, db:
        for name in ("env_id", "forks") if older else ():
            if older == "no values":
                db.execute(f"UPDATE trajectories SET {name} = NULL")
            else:
                db.execute(f"ALTER TABLE trajectories RENAME COLUMN {name} TO no_{name}")
    with closing(EpisodeReader(path)) as reader:
        found = reader.facts(limit=10)
    assert [(it.episode_id, it.env_id, it.forks) for it in found] == [
        (second.episode_id, "", "{}"),
        (first.episode_id, "math", '{"edited": 2}'),
    ]
