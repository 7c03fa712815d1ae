"""The loop and the controller, with ranks that a test plays."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentgym_rl.config import AlgoConfig, TrainerConfig, WeightsConfig
from agentgym_rl.controller import RanksFailed
from agentgym_rl.controller import controller as module
from agentgym_rl.core import ConfigError, Published, StepReport, TrainerError, WeightsError
from agentgym_rl.run import loop as loop_module
from agentgym_rl.storage import EpisodeLog, read_phases
from agentgym_rl.storage.metrics import read_metrics
from tests.kit.cases import cases
from tests.kit.groups import Publications, make_group
from tests.kit.served import served


def test_two_ranks_share_a_batch_and_its_report_publishes(tmp_path, group):
    async def play() -> None:
        async with served(tmp_path) as s:
            await s.add(group("a", [0]), group("b", [0]))
            shards = [await s.ranks.batch(0, rank) for rank in (0, 1)]
            assert sorted(i.episode for x in shards for m in x.minibatches for i in m) == [
                0, 1, 2, 3,
            ]  # fmt: skip
            intervals = [("forward_backward", 1.0, 2.0)]
            report = StepReport(0, 1, {"loss": 0.5}, intervals, ["a", "b"])
            found = await s.ranks.report(report, life=0)
            assert found["loss"] == 0.5
            assert (s.controller.version, s.ranks.published) == (1, [1])

    asyncio.run(play())
    (step,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (step["loss"], step["reward/mean"]) == (0.5, 0.5)
    assert step["time/engine_pause"] == step["time/weights_stage"] == 0.0
    (phases,) = read_phases(tmp_path)
    assert phases.step == 0
    assert phases.trainer[0] == ("forward_backward", 1.0, 2.0)
    assert [name for name, *_ in phases.trainer] == ["forward_backward", "weight_sync"]


@cases("report", [StepReport(0, 1, {}, [], ["a"]), StepReport(1, 2, {}, [], ["a", "b"])])
def test_a_report_of_another_batch_is_a_failure_of_the_ranks(report, group):
    async def play(folder) -> None:
        async with served(folder) as s:
            await s.add(group("a", [0]), group("b", [0]))
            await s.ranks.batch(0, 0)
            with pytest.raises(RanksFailed, match="the report is of another"):
                await s.ranks.report(report, life=0)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


class Shared:
    """Devices whose turn is that of the ranks at the second look, and whose engines slept twice."""

    looks = 0

    async def ranks_started(self) -> None: ...

    async def to_ranks(self) -> bool:
        self.looks += 1
        return self.looks > 1

    def slept(self) -> dict[str, list[tuple[str, float, float]]]:
        return {"engine-0": [("asleep", 1.0, 2.0), ("asleep", 4.0, 5.5)], "engine-1": []}


def test_the_longest_sleep_of_an_engine_is_a_metric_and_its_intervals_are_phases(tmp_path, group):
    async def play() -> None:
        async with served(tmp_path, Publications(e="http://e"), Shared()) as s:
            await s.add(group("a", [0]), group("b", [0]))
            await s.train(0, others={"engine-0": [("wake", 5.5, 6.0)]})

    asyncio.run(play())
    (step,) = read_metrics(tmp_path / "metrics.jsonl")
    assert step["time/asleep"] == 2.5
    (phases,) = read_phases(tmp_path)
    assert phases.others["engine-0"] == [
        *(("asleep", 1.0, 2.0), ("asleep", 4.0, 5.5), ("wake", 5.5, 6.0))
    ]
    assert phases.others["engine-1"] == []


def test_engines_that_do_not_leave_the_devices_end_the_run(tmp_path, group):
    devices = Shared()
    devices.looks = -(10**9)

    async def play() -> None:
        trainer = TrainerConfig(num_ranks=2, num_minibatches=1, batch_timeout_s=0.05)
        async with served(tmp_path, devices=devices, trainer=trainer) as s:
            await s.add(group("a", [0]), group("b", [0]))
            with pytest.raises(TrainerError, match=r"batch 0 waited 0 s .* leave the devices"):
                await s.ranks.batch(0, 0)

    asyncio.run(play())


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
                await s.add(*[group(name, [step], reward=reward) for name in names])
                await s.train(step, {"grad_norm": norm, "lr": 1.0})

    asyncio.run(play())
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text[:22] for text in said] == [warned] * bool(warned)


def test_a_teacher_of_no_task_is_warned_of_once(tmp_path, group, caplog):
    models = [{"model": "a", "only": {"level": n}} for n in (1, 2)]
    algo = AlgoConfig.model_validate({"teacher": {"models": models}})

    async def play() -> None:
        async with served(tmp_path, algo=algo) as s:
            for step in range(4):
                level = {"level": 1 + (step == 3)}
                names = [f"{step}a", f"{step}b"]
                await s.add(*[replace(group(name, [step]), data=level) for name in names])
                await s.train(step, {"grad_norm": 1.0, "lr": 1.0})

    asyncio.run(play())
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "teaches none of the tasks of the first 3 batches: it is for tasks with" in said
    assert "{'level': 2} (only), and one of the last batch has {'env_id': '', 'level': 1}" in said


def test_a_warning_of_a_rank_is_on_the_console(tmp_path, group, caplog):
    async def play() -> None:
        async with served(tmp_path) as s:
            await s.add(group("a", [0]), group("b", [0]))
            await s.train(0, warnings=["they disagree"])

    asyncio.run(play())
    assert "they disagree" in caplog.text


def test_a_batch_is_leased_only_at_its_own_version(tmp_path, group):
    async def play() -> None:
        async with served(tmp_path) as s:
            await s.add(*[group(name, [0]) for name in ("a", "b", "c", "d")])
            assert s.controller.could_have(0)
            assert not s.controller.could_have(1)

    asyncio.run(play())


def test_a_wait_for_a_batch_is_as_long_as_no_engine_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.05)
    fleet = Publications(e="http://e")

    async def play() -> list[bool]:
        found: list[bool] = []
        async with served(tmp_path, fleet) as s:
            for silent_s, sampled in (({}, 0), ({"e": 0.01}, 0), ({"e": 9.0}, 0), ({"e": 9.0}, 7)):
                fleet.silent_s, s.controller.buffer.sampled_tokens = silent_s, sampled
                s.controller._sampled = (s.controller._sampled[0], -1e9)  # long ago
                found.append(s.controller.samples())
        return found

    assert asyncio.run(play()) == [False, True, False, True]


def test_a_batch_that_never_comes_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(loop_module, "LOOK_EVERY_S", 0.02)

    async def play() -> None:
        trainer = TrainerConfig(num_ranks=2, num_minibatches=1, batch_timeout_s=0.05)
        async with served(tmp_path, trainer=trainer) as s:
            with pytest.raises(TrainerError, match=r"batch 0 is not complete, .* for 0 s"):
                await s.ranks._until(lambda: False, "the end")

    asyncio.run(play())


class Sampling:
    """A controller without a complete batch, of which engines have sampled at some looks."""

    def __init__(self, looks: str) -> None:
        self.looks = looks
        """A letter for each look: what has happened since the one before."""
        self.now = 0.0
        self.trainer, self.algo = TrainerConfig(batch_timeout_s=10), AlgoConfig()

    def ready_for(self, step: int) -> bool:
        return self.looks.startswith("c")

    def samples(self) -> bool:
        return self.looks.startswith("s")


@pytest.mark.parametrize(
    ("looks", "waited"),
    [("iic", True), ("iiiic", False), ("iisiic", True), ("sisisisic", True), ("siiiic", False)],
)
def test_a_batch_may_be_late_while_engines_sample(looks, waited, monkeypatch):
    """Each look comes 3 s after the one before; the limit is 10 s."""
    run = Sampling("i" + looks)
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: run.now))
    loop = loop_module.Loop(cast(Any, run), cast(Any, None))

    async def look(*_: object) -> None:
        run.looks, run.now = run.looks[1:], run.now + 3

    monkeypatch.setattr(loop, "_look", look)
    outcome = nullcontext() if waited else pytest.raises(TrainerError, match="batch 4 is not comp")
    with outcome:
        asyncio.run(loop._until_complete(4))


def test_the_overlap_counts_each_batch_once_and_not_the_first(tmp_path, group):
    """Nothing trained while the first one was sampled; ranks that are replaced get theirs again."""

    async def play() -> None:
        async with served(tmp_path) as s:
            s.controller.overlap.add_episodes = lambda members: float(len(members))
            for step in range(2):
                await s.add(*[group(f"{step}{name}", [step]) for name in "ab"])
                await s.train(step)
            await s.add(group("2a", [2]), group("2b", [2]))
            await s.ranks.batch(2, 0)
            await s.ranks.lose(s.ranks.loop)
            await s.ranks.loop.regroup(2, None)
            await s.train(2)

    asyncio.run(play())
    found = [step["overlap"] for step in read_metrics(tmp_path / "metrics.jsonl")]
    assert found == [None, 4.0, None]


def test_the_loop_gets_the_batch_as_soon_as_it_is_complete(tmp_path, group):
    async def play() -> None:
        async with served(tmp_path) as s, asyncio.TaskGroup() as tasks:
            assert not s.controller.trainer_ready  # no rank has loaded its model
            assert not s.controller.trainer_waits
            s.controller.num_asking = 1
            waiting = tasks.create_task(s.ranks._until(lambda: s.ranks._has(0), "batch 0"))
            await asyncio.sleep(0.05)
            assert s.controller.trainer_waits
            await s.add(group("a", [0]), group("b", [0]))
            await waiting
            assert not s.controller.trainer_waits

    asyncio.run(play())


def test_stale_groups_are_dropped_at_the_lease_and_counted(tmp_path, group):
    async def play() -> None:
        async with served(tmp_path) as s:
            for step in (0, 1):
                await s.add(group(f"a{step}", [step]), group(f"b{step}", [step]))
                await s.train(step)
            await s.add(group("old", [0]), group("new", [2]))
            assert await s.ranks.batch(2, 0) is None
            await s.add(group("newer", [2]))
            shard = await s.ranks.batch(2, 0)
            assert set(shard.group_ids) == {"new", "newer"}
            assert s.controller.buffer.dropped == {"stale": 1}

    asyncio.run(play())


def test_a_stale_group_that_ends_while_another_is_dropped_is_dropped_too(
    tmp_path, group, monkeypatch
):
    drop = EpisodeLog.drop

    async def play() -> None:
        async with served(tmp_path) as s:
            for step in (0, 1):
                await s.add(group(f"a{step}", [step]), group(f"b{step}", [step]))
                await s.train(step)
            late = [group("older", [0])]

            async def drop_slowly(log, groups, cause):
                await drop(log, groups, cause)
                if late:
                    await s.add(late.pop())

            monkeypatch.setattr(EpisodeLog, "drop", drop_slowly)
            await s.add(group("old", [0]), group("new", [2]), group("newer", [2]))
            shard = await s.ranks.batch(2, 0)
            assert set(shard.group_ids) == {"new", "newer"}
            assert s.controller.buffer.dropped == {"stale": 2}

    asyncio.run(play())


def test_a_publication_is_for_those_that_are_there_and_says_who_has_it(tmp_path, group):
    fleet = Publications(a="http://a", b="http://b")

    async def play() -> None:
        async with served(tmp_path, fleet) as s:

            async def one_fails(version, engines, timeout_s):
                assert engines == fleet.engines
                return Published(0.1, 0.1, {"a": (0.0, 0.1)}, {"b": "gone"})

            s.ranks.publish = one_fails
            await s.add(group("a", [0]), group("b", [0]))
            await s.train(0)

    asyncio.run(play())
    assert fleet.ended == [(1, ["a"], {"b": "gone"})]
    (phases,) = read_phases(tmp_path)
    assert phases.others == {"a": [("pause", 0.0, 0.1)]}


def test_a_publication_that_failed_is_begun_again(tmp_path, group):
    fleet = Publications(a="http://a")

    async def play() -> None:
        async with served(tmp_path, fleet) as s:
            results = [{}, {}, {"a": (0.0, 0.1)}]

            async def tries(version, engines, timeout_s):
                pauses = results.pop(0)
                return Published(0.1, 0.1, pauses, {} if pauses else {"a": "busy"})

            s.ranks.publish = tries
            await s.add(group("a", [0]), group("b", [0]))
            await s.train(0)

    asyncio.run(play())
    assert [served for _, served, _ in fleet.ended] == [[], [], ["a"]]


@pytest.mark.parametrize("there", [False, True])
def test_engines_that_stay_gone_are_a_failure_of_the_ranks(there, tmp_path, group):
    fleet = Publications(**({"a": "http://a"} if there else {}))
    weights = WeightsConfig(update_timeout_s=0.3)

    async def play() -> None:
        async with served(tmp_path, fleet, weights=weights) as s:

            async def fails(version, engines, timeout_s):
                return Published(0.1, 0.1, {}, {"a": "gone"})

            s.ranks.publish = fails
            await s.add(group("a", [0]), group("b", [0]))
            why = "no engine took policy version 1: gone" if there else "no engine was there"
            with pytest.raises(WeightsError, match=why):
                await s.train(0)
            assert s.controller.version == 0

    asyncio.run(play())


def test_a_publication_whose_ranks_are_lost_ends_engines_that_failed(tmp_path, group):
    fleet, ending, go = Publications(a="http://a", b="http://b"), asyncio.Event(), asyncio.Event()
    end = fleet.end_publication

    async def ends_slowly(*args, **more):
        ending.set()
        await go.wait()
        await end(*args, **more)

    fleet.end_publication = ends_slowly

    async def play() -> None:
        async with served(tmp_path, fleet) as s, asyncio.TaskGroup() as tasks:

            async def one_fails(version, engines, timeout_s):
                return Published(0.1, 0.1, {"a": (0.0, 0.1)}, {"b": "gone"})

            s.ranks.publish = one_fails
            await s.add(group("a", [0]), group("b", [0]))
            training = tasks.create_task(s.train(0))
            await ending.wait()
            await s.ranks.lose(s.ranks.loop)
            assert await training is None
            go.set()
            await asyncio.sleep(0.01)

    asyncio.run(play())
    assert fleet.ended == [(1, ["a"], {"b": "gone"})]


@pytest.mark.parametrize("during", ["lease", "publish"])
def test_a_checkpoint_that_fails_ends_neither_a_lease_nor_a_record(
    during, tmp_path, group, monkeypatch
):
    write, writing, go = getattr(EpisodeLog, during), asyncio.Event(), asyncio.Event()
    losses: list[str] = []
    trainer = TrainerConfig(num_ranks=2, num_minibatches=1, checkpoint_every=2)

    async def writes_slowly(log, *args):
        if (args[1] if during == "lease" else args[0].step) == 2:
            writing.set()
            await go.wait()
        return await write(log, *args)

    async def fails(metrics):
        await writing.wait()
        raise RanksFailed("no answer")

    async def play() -> None:
        async with served(tmp_path, trainer=trainer, steps=9) as s, asyncio.TaskGroup() as tasks:
            complete, s.ranks.complete = s.ranks.complete, fails
            s.ranks.lost = lambda error: losses.append(str(error))
            for step in range(3):
                await s.add(*[group(f"{step}{name}", [step]) for name in "ab"])
                if step < 2:
                    await s.train(step)
            monkeypatch.setattr(EpisodeLog, during, writes_slowly)
            training = tasks.create_task(s.train(2) if during == "publish" else s.ranks.batch(2, 0))
            await writing.wait()
            for _ in range(9):
                await asyncio.sleep(0)  # the checkpoint fails
            go.set()
            await s.ranks.lose(s.ranks.loop)
            await training
            assert losses == ["no answer"]
            assert s.controller.version == 2 + (during == "publish")
            s.ranks.complete = complete
            await s.ranks.loop.regroup(0, None)
            for step in range(3):
                await s.train(step)
            assert s.controller.version == 3

    asyncio.run(play())


def test_a_checkpoint_that_is_never_complete_is_a_failure_of_the_ranks(tmp_path, group):
    trainer = TrainerConfig(
        num_ranks=2, num_minibatches=1, checkpoint_every=1, finish_timeout_s=0.05
    )

    async def never(metrics):
        await asyncio.Event().wait()

    async def play() -> None:
        async with served(tmp_path, trainer=trainer, steps=9) as s:
            s.ranks.complete = never
            await s.add(*[group(name, [0]) for name in ("a", "b", "c", "d")])
            await s.train(0)
            with pytest.raises(RanksFailed, match=r"not complete within 0.05 s .trainer.finish_t"):
                await s.train(1)
            assert s.controller.version == 1

    asyncio.run(play())


def test_a_version_is_published_again_for_an_engine_that_came_back(tmp_path, group, monkeypatch):
    monkeypatch.setattr(loop_module, "LOOK_EVERY_S", 0.02)
    fleet = Publications(a="http://a")

    async def play() -> None:
        async with served(tmp_path, fleet) as s:
            await s.add(group("a", [0]), group("b", [0]))
            await s.train(0)
            fleet.wanted = True
            while len(s.ranks.published) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            s.controller.close()
            assert set(s.ranks.published) == {1}

    asyncio.run(play())


@cases("algo", [{"leave_out": ["absent"]}, {"reward": {"parts": {"absent": 1.0}}}])
def test_a_name_that_no_episode_has_ends_the_run(algo):
    async def play(folder) -> None:
        async with served(folder, algo=AlgoConfig.model_validate(algo)) as s:
            await s.add(make_group("a", [0]), make_group("b", [0]))
            with pytest.raises(ConfigError, match="names 'absent'"):
                await s.train(0)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


def test_ranks_that_are_replaced_count_no_more_and_their_batches_come_again(tmp_path, group):
    async def play() -> tuple:
        async with served(tmp_path) as s:
            before = []
            for step in (0, 1, 2):  # the last one is in hand
                await s.add(group(f"a{step}", [step]), group(f"b{step}", [step]))
                before.append((await s.ranks.batch(step, 0)).group_ids)
                if step < 2:
                    await s.train(step)
            await s.ranks.lose(s.ranks.loop)
            assert await s.ranks.loop.regroup(1, None) == 1
            after = []
            for step in (1, 2):
                after.append((await s.ranks.batch(step, 0)).group_ids)
                assert s.controller.version == 2
                await s.train(step)
            assert s.controller.version == 3
            assert s.ranks.published == [1, 2, 2, 3], "the version that engines have, and the next"
            return before[1:], after

    before, after = asyncio.run(play())
    assert before == after
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as log:
        assert log.execute("SELECT step, checkpoint FROM incarnations").fetchall() == [(1, "")]


def test_checkpoints_are_completed_beside_batches_and_logged_after_their_batch(tmp_path, group):
    trainer = TrainerConfig(num_ranks=2, num_minibatches=1, checkpoint_every=2)

    async def play() -> None:
        async with served(tmp_path, trainer=trainer, steps=3) as s:
            begun, may_complete, ended = [], asyncio.Event(), asyncio.Event()

            async def checkpoint(step):
                begun.append((step, len(s.controller.history)))
                return {
                    "trainer-0": [("checkpoint", 1.0, 3.0)],
                    "trainer-1": [("checkpoint", 1, 2)],
                }

            async def complete(metrics):
                await may_complete.wait()
                return tmp_path / f"step-{len(s.controller.history)}"

            async def stop():
                ended.set()

            s.ranks.checkpoint, s.ranks.complete, s.ranks.stop = checkpoint, complete, stop
            for step in range(3):
                await s.add(group(f"a{step}", [step]), group(f"b{step}", [step]))
                training = asyncio.create_task(s.train(step))
                if step == 2:
                    await asyncio.sleep(0.05)
                    assert begun == [(2, 1)], "one at a time"
                    may_complete.set()
                assert (await training).get("time/checkpoint", 0) == (2.0 if step else 0)
            await ended.wait()
            assert begun == [(2, 1), (3, 2)], "before the record"

    asyncio.run(play())
    assert [set(phases.others) for phases in read_phases(tmp_path)] == [
        {"e"},
        *[{"e", "trainer-1"}] * 2,
    ]
    with closing(sqlite3.connect(tmp_path / "episodes.db")) as log:
        found = log.execute("SELECT version FROM versions WHERE checkpoint != ''").fetchall()
    assert sorted(found) == [(2,), (3,)]


def test_the_first_version_of_ranks_is_published_before_they_count_as_ready(tmp_path):
    fleet = Publications()

    async def play() -> None:
        async with served(tmp_path, fleet) as s:
            await s.ranks.lose(s.ranks.loop)

            async def begun():
                return 4

            s.ranks.begun = begun
            await s.ranks.loop.regroup(0, None)
            await asyncio.sleep(0.1)
            assert not s.controller.trainer_ready, "no engine is there"
            fleet.engines = {"e": "http://e"}
            await s.ranks._until(lambda: s.controller.trainer_ready, "ranks")
            assert s.ranks.published == [4]

    asyncio.run(play())
