"""The controller over real HTTP, as trainer ranks see it."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym_rl.config import AlgoConfig
from agentgym_rl.controller import controller as module
from agentgym_rl.core.batch import BatchShard, StepReport
from agentgym_rl.core.errors import ConfigError, TrainerError
from agentgym_rl.storage.episode_log import EpisodeLog
from agentgym_rl.storage.metrics import read_metrics
from agentgym_rl.storage.phases import read_phases
from tests.kit.cases import cases
from tests.kit.groups import Publications, make_group
from tests.kit.served import served


def report(step: int, *group_ids: str) -> bytes:
    intervals = [("forward_backward", 1.0, 2.0)]
    return StepReport(step, step + 1, {"loss": 0.5}, intervals, group_ids).pack()


def test_two_ranks_share_a_batch_and_its_report_publishes(tmp_path, group):
    async def play() -> None:
        async with served(tmp_path) as s:
            await s.add(group("a", [0]))
            await s.add(group("b", [0]))
            bodies = [await (await s.http.get(f"/batch/0?rank={r}")).read() for r in (0, 1)]
            shards = [BatchShard.unpack(body) for body in bodies]
            assert sorted(i.episode for x in shards for m in x.minibatches for i in m) == [
                0, 1, 2, 3,
            ]  # fmt: skip
            assert (await s.http.post("/report", data=report(0, "a"))).status == 400
            answer = await s.http.post("/report", data=report(0, "a", "b"))
            assert (await answer.json(content_type=None))["loss"] == 0.5
            assert s.controller.version == 1

    asyncio.run(play())
    (step,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (step["loss"], step["reward/mean"]) == (0.5, 0.5)
    assert [(s.step, s.trainer) for s in read_phases(tmp_path)] == [
        (0, [("forward_backward", 1.0, 2.0)])
    ]


class Shared:
    """Devices whose turn is always that of the ranks, and whose engines slept twice."""

    async def ranks_started(self) -> None: ...

    async def to_ranks(self, *, lead: bool, wanted) -> bool:
        return True

    def slept(self) -> dict[str, list[tuple[str, float, float]]]:
        return {"engine-0": [("asleep", 1.0, 2.0), ("asleep", 4.0, 5.5)], "engine-1": []}


def test_the_longest_sleep_of_an_engine_is_a_metric_and_its_intervals_are_phases(tmp_path, group):
    async def play() -> None:
        async with served(tmp_path, devices=Shared()) as s:
            await s.add(group("a", [0]))
            await s.add(group("b", [0]))
            await s.http.get("/batch/0?rank=0")
            found = StepReport(0, 1, {}, [], ("a", "b"), others={"engine-0": [("wake", 5.5, 6.0)]})
            assert (await s.http.post("/report", data=found.pack())).status == 200

    asyncio.run(play())
    (step,) = read_metrics(tmp_path / "metrics.jsonl")
    assert step["time/asleep"] == 2.5
    (phases,) = read_phases(tmp_path)
    assert phases.others == {
        "engine-0": [("asleep", 1.0, 2.0), ("asleep", 4.0, 5.5), ("wake", 5.5, 6.0)],
        "engine-1": [],
    }


@pytest.mark.parametrize(
    ("batches", "warned"),
    [
        ([(0.5, 0.0), (0.0, 0.0), (0.0, 0.0)], "batch 1 taught nothing"),
        ([(0.0, 1.0), (0.0, 1.0)], "batch 0 taught nothing"),
        ([(0.5, 0.5), (0.0, 1.0), (0.0, 1.0)], ""),  # it has learned its tasks
        ([(0.5, 0.5), (0.0, 1.0), (0.0, 0.5)], "batch 2 taught nothing"),
    ],
    ids=range(4),
)
def test_the_first_batch_that_taught_nothing_is_warned_of(batches, warned, tmp_path, group, caplog):
    async def play() -> None:
        async with served(tmp_path) as s:
            for step, (norm, reward) in enumerate(batches):
                names = [f"{step}a", f"{step}b"]
                for name in names:
                    await s.add(group(name, [step], reward=reward))
                await s.http.get(f"/batch/{step}?rank=0")
                found = StepReport(step, step + 1, {"grad_norm": norm, "lr": 1.0}, [], names)
                assert (await s.http.post("/report", data=found.pack())).status == 200

    asyncio.run(play())
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text[:22] for text in said] == [warned] * bool(warned)


def test_a_teacher_of_no_task_is_warned_of_once(tmp_path, group, caplog):
    models = [{"model": "a", "only": {"level": n}} for n in (1, 2)]
    algo = AlgoConfig.model_validate({"teacher": {"models": models}})

    async def play() -> None:
        async with served(tmp_path, algo=algo) as s:
            for step in range(4):
                names = [f"{step}a", f"{step}b"]
                for name in names:
                    await s.add(replace(group(name, [step]), data={"level": 1 + (step == 3)}))
                await s.http.get(f"/batch/{step}?rank=0")
                found = StepReport(step, step + 1, {"grad_norm": 1.0, "lr": 1.0}, [], names)
                assert (await s.http.post("/report", data=found.pack())).status == 200

    asyncio.run(play())
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "teaches none of the tasks of the first 3 batches: it is for tasks with" in said
    assert "{'level': 2} (only), and one of the last batch has {'env_id': '', 'level': 1}" in said


def test_a_rank_can_say_something_on_the_console(tmp_path, caplog):
    async def play() -> None:
        async with served(tmp_path) as s:
            assert (await s.http.post("/warn", json={"text": "they disagree"})).status == 200
            assert (await s.http.post("/warn", json={"words": "they"})).status == 400

    asyncio.run(play())
    assert "they disagree" in caplog.text


def test_a_batch_is_leased_only_at_its_own_version(tmp_path, group, monkeypatch):
    monkeypatch.setattr(module, "LONG_POLL_S", 0.05)

    async def play() -> None:
        async with served(tmp_path) as s:
            for name in ("a", "b", "c", "d"):
                await s.add(group(name, [0]))
            assert (await s.http.get("/batch/1?rank=0")).status == 204

    asyncio.run(play())


def test_a_waiting_rank_is_told_whether_engines_sample_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONG_POLL_S", 0.05)
    fleet = Publications()

    async def play() -> list[int]:
        statuses: list[int] = []
        async with served(tmp_path, fleet) as s:
            for silent_s, sampled in (({}, 0), ({"e": 0.01}, 0), ({"e": 9.0}, 0), ({"e": 9.0}, 7)):
                fleet.silent_s, s.controller.buffer.sampled_tokens = silent_s, sampled
                statuses.append((await s.http.get("/batch/0?rank=0")).status)
            statuses.append((await s.http.get("/batch/0?rank=0")).status)
        return statuses

    assert asyncio.run(play()) == [204, 202, 204, 202, 204]


def test_every_waiting_rank_is_told_of_an_episode_that_ended(tmp_path):
    async def play() -> list[bool]:
        async with served(tmp_path) as s:
            s.controller.buffer.sampled_tokens = 7
            return [s.controller.samples() for _ in range(2)]

    assert asyncio.run(play()) == [True, True]


def test_a_waiting_rank_gets_the_batch_as_soon_as_it_is_complete(tmp_path, group):
    async def play() -> None:
        async with served(tmp_path) as s, asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(s.http.get("/batch/0?rank=0"))
            await asyncio.sleep(0.05)
            await s.add(group("a", [0]))
            await s.add(group("b", [0]))
            async with asyncio.timeout(60):
                assert (await waiting).status == 200

    asyncio.run(play())


def test_stale_groups_are_dropped_at_the_lease_and_counted(tmp_path, group, monkeypatch):
    monkeypatch.setattr(module, "LONG_POLL_S", 0.05)

    async def play() -> None:
        async with served(tmp_path) as s:
            await s.add(group("old", [0]))
            await s.add(group("new", [2]))
            s.controller.history += [{}, {}]
            s.controller.buffer.publish(2)
            assert (await s.http.get("/batch/2?rank=0")).status == 204
            await s.add(group("newer", [2]))
            shard = BatchShard.unpack(await (await s.http.get("/batch/2?rank=0")).read())
            assert set(shard.group_ids) == {"new", "newer"}
            assert s.controller.buffer.dropped == {"stale": 1}

    asyncio.run(play())


def test_a_stale_group_that_ends_while_another_is_dropped_is_dropped_too(
    tmp_path, group, monkeypatch
):
    monkeypatch.setattr(module, "LONG_POLL_S", 0.05)
    drop = EpisodeLog.drop

    async def play() -> None:
        async with served(tmp_path) as s:
            late = [group("older", [0])]

            async def drop_slowly(log, groups, cause):
                await drop(log, groups, cause)
                if late:
                    await s.add(late.pop())

            monkeypatch.setattr(EpisodeLog, "drop", drop_slowly)
            for name, version in (("old", 0), ("new", 2), ("newer", 2)):
                await s.add(group(name, [version]))
            s.controller.history += [{}, {}]
            s.controller.buffer.publish(2)
            shard = BatchShard.unpack(await (await s.http.get("/batch/2?rank=0")).read())
            assert set(shard.group_ids) == {"new", "newer"}
            assert s.controller.buffer.dropped == {"stale": 2}

    asyncio.run(play())


@cases(
    "method, path, body, status",
    [
        ("GET", "/batch/0?rank=9", b"", 400),
        ("GET", "/nowhere", b"", 404),
        ("POST", "/report", b"garbage", 400),
        ("POST", "/report", report(3), 400),
        ("POST", "/ready", b"{", 400),
        ("POST", "/ready", b'{"rank": 1}', 200),
    ],
)
def test_bad_requests_are_refused(tmp_path, method, path, body, status):
    async def play() -> None:
        async with served(tmp_path) as s:
            answer = await s.http.request(method, path, data=body)
            assert answer.status == status

    asyncio.run(play())


def test_a_wrong_token_is_refused(tmp_path):
    async def play() -> None:
        async with served(tmp_path) as s:
            headers = {"authorization": "Bearer wrong"}
            answer = await s.http.get("/batch/0", headers=headers)
            assert answer.status == 401

    asyncio.run(play())


def test_ranks_are_told_when_the_run_ends(tmp_path):
    async def play() -> None:
        async with served(tmp_path) as s:
            s.controller.close()
            assert (await s.http.get("/batch/0?rank=0")).status == 410

    asyncio.run(play())


def test_a_publication_asks_who_gets_it_and_says_who_has_it(tmp_path):
    async def play() -> tuple:
        fleet = Publications(a="http://a", b="http://b")
        async with served(tmp_path, fleet) as s:
            begun = await s.http.post("/publish/begin", json={"version": 3})
            end = {"version": 3, "served": ["a"], "failed": {"b": "gone"}}
            ended = await s.http.post("/publish/end", json=end)
            wrong = await s.http.post("/publish/end", json=end | {"surplus": 1})
            return await begun.json(content_type=None), ended.status, wrong.status, fleet.ended

    engines = {"a": "http://a", "b": "http://b"}
    ends = [(3, ["a"], {"b": "gone"})]
    assert asyncio.run(play()) == ({"engines": engines}, 200, 400, ends)


def test_a_publication_waits_for_an_engine_and_ends_with_the_run(tmp_path):
    async def play() -> list[int]:
        async with served(tmp_path) as s:
            first = await s.http.post("/publish/begin", json={"version": 1})
            s.controller.close()
            return [first.status, (await s.http.post("/publish/begin", json={"version": 1})).status]

    assert asyncio.run(play()) == [204, 410]


def test_rank_0_is_asked_to_publish_again_for_an_engine_that_came_back(tmp_path):
    async def play() -> list[int]:
        fleet = Publications()
        async with served(tmp_path, fleet) as s:
            fleet.wanted = True
            asked = await s.http.get("/batch/0?rank=0")
            s.controller.close()
            return [asked.status, (await s.http.get("/batch/0?rank=0")).status]

    assert asyncio.run(play()) == [205, 410]


def test_a_batch_that_cannot_be_trained_ends_the_run_and_no_rank_begins_again(tmp_path):
    async def play() -> None:
        async with served(tmp_path) as s:
            assert (await s.http.post("/failed", json={"why": "batch 0: inf"})).status == 200
            assert (await s.http.post("/failed", json={"why": "so say I"})).status == 200
            with pytest.raises(TrainerError, match="batch 0: inf"):
                await s.controller.watch()

    asyncio.run(play())


@cases("algo", [{"leave_out": ["absent"]}, {"reward": {"parts": {"absent": 1.0}}}])
def test_a_name_that_no_episode_has_ends_the_run_and_no_rank_begins_again(algo):
    async def play(folder) -> None:
        async with served(folder, algo=AlgoConfig.model_validate(algo)) as s:
            for name in ("a", "b"):
                await s.add(make_group(name, [0]))
            assert (await s.http.get("/batch/0?rank=0")).status == 410
            with pytest.raises(ConfigError, match="names 'absent'"):
                await s.controller.watch()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


def test_ranks_that_are_replaced_count_no_more_and_their_batches_come_again(tmp_path, group):
    async def play() -> tuple:
        async with served(tmp_path) as s:
            before = []
            for step in (0, 1, 2):  # the last one is in hand
                for name in ("a", "b"):
                    await s.add(group(f"{name}{step}", [step]))
                answer = await s.http.get(f"/batch/{step}?rank=0")
                before.append(BatchShard.unpack(await answer.read()).group_ids)
                if step < 2:
                    await s.http.post("/report", data=report(step, *dict.fromkeys(before[-1])))
            assert (await s.http.post("/current", json={})).status == 200
            assert await s.controller.regroup(1, None) == 1
            assert (await s.http.post("/current", json={})).status == 401
            late = await s.http.post("/report", data=report(2, *dict.fromkeys(before[2])))
            assert late.status == 401
            s.http.headers["authorization"] = f"Bearer {s.controller.token}"
            after = []
            for step in (1, 2):
                answer = await s.http.get(f"/batch/{step}?rank=0")
                after.append(BatchShard.unpack(await answer.read()).group_ids)
                assert s.controller.version == 2
                await s.http.post("/report", data=report(step, *dict.fromkeys(after[-1])))
            assert s.controller.version == 3
            return before[1:], after

    before, after = asyncio.run(play())
    assert before == after
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as log:
        assert log.execute("SELECT step, checkpoint FROM incarnations").fetchall() == [(1, "")]


@pytest.mark.parametrize("is_ending", [False, True])
def test_no_rank_is_ahead_of_a_batch_that_comes_again(tmp_path, group, monkeypatch, is_ending):
    monkeypatch.setattr(module, "LONG_POLL_S", 0.05)

    async def play() -> list[int]:
        async with served(tmp_path) as s:
            for step in (0, 1):
                for name in ("a", "b"):
                    await s.add(group(f"{name}{step}", [step]))
                await s.http.get(f"/batch/{step}?rank=0")
                names = (f"a{step}", f"b{step}")
                await s.http.post("/report", data=report(step, *names))
            if is_ending:
                s.controller.close()
            await s.controller.regroup(0, None)
            s.http.headers["authorization"] = f"Bearer {s.controller.token}"
            asked = [await s.http.get(f"/batch/{step}?rank=1") for step in (0, 1, 2)]
            return [answer.status for answer in asked]

    assert asyncio.run(play()) == [200, 204, 410 if is_ending else 204]
