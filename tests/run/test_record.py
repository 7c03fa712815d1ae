"""The record of a trained batch: what is in its metrics, and the order in which it is written."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from agentgym_rl.controller import RanksFailed
from agentgym_rl.controller.schedule import Due
from agentgym_rl.core import StepReport
from agentgym_rl.run import record
from agentgym_rl.run.record import Batch, Checkpoints, Record, with_intervals
from tests.kit.groups import make_group
from tests.kit.served import CONFIG


class Run:
    """A controller whose parts note what is called, in this order."""

    def __init__(self, *, version: int = 0, shares_devices: bool = False, evaluates: bool = True):
        self.calls: list[str] = []
        self.version, self.algo = version, CONFIG.algo
        self.rollout_metrics = {"rollout/queue": 3.0}
        self.history: list[Any] = []
        self.parameters = {7: "a", 8: "b"}
        self.written: dict[str, Any] = {}
        self.buffer = SimpleNamespace(
            dropped={"stale": 2},
            sampled_tokens=0,
            publish=self.note("buffer"),
            changes=SimpleNamespace(notify=self.note("buffer.changes")),
        )
        self.changes = SimpleNamespace(notify=self.note("changes"))
        self.overlap = SimpleNamespace(add_intervals=self.note("overlap"))
        self.metrics = SimpleNamespace(write=self.note("metrics"))
        self.phases = SimpleNamespace(write=self.note("phases"))
        self.on_step = self.note("on_step")
        publish = self.note("log")

        async def logged(*arguments: Any) -> None:
            publish(*arguments)

        self.episodes = SimpleNamespace(publish=logged)
        self.evaluations = (
            SimpleNamespace(published=self.note("evaluations")) if evaluates else None
        )
        sleep = {"e": [("sleep", 1.0, 4.0)], "f": [("sleep", 1.0, 2.0), ("sleep", 5.0, 7.5)]}
        self.devices = SimpleNamespace(slept=lambda: sleep) if shares_devices else None

    def note(self, name: str):
        def call(*arguments: Any, **keys: Any) -> None:
            self.calls.append(name)
            self.written[name] = (*arguments, *keys.values())

        return call


class Shard:
    num_trained_tokens = 30


def batch(step: int, *, due: Due = Due(checkpoint=False, evaluation=True)) -> Batch:  # noqa: B008
    groups = [make_group("a", [step]), make_group("b", [step - 1])]
    shards: Any = [Shard()]
    return Batch(step, groups, shards, 0.25, due)


def report(step: int, **more: Any) -> StepReport:
    given = {"metrics": {"loss": 0.5}, "intervals": [("optimizer", 1.0, 2.0)], "parameters": "p"}
    return StepReport(step, step + 1, **{**given, **more})


@pytest.fixture
def clock(monkeypatch):
    found = SimpleNamespace(now=10.0)
    monkeypatch.setattr(record, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def written(run: Any, of: StepReport, *, after: Record | None = None):
    return asyncio.run((after or Record(run)).write(batch(of.step), of))


def test_a_report_gets_the_metrics_of_its_groups_and_keeps_its_own(caplog):
    run: Any = Run()
    found = Record(run).begun(
        batch(3), report(3, metrics={"overlap": 9.0, "loss": 0.5}, warnings=["it is late"])
    )
    assert found.metrics["loss"] == 0.5
    assert found.metrics["overlap"] == 9.0
    assert found.metrics["staleness/mean"] == 0.5
    assert found.metrics["staleness/dropped"] == 2
    assert "episode/left_out" not in found.metrics
    assert "it is late" in caplog.text
    assert Record(run).begun(batch(3), report(3)).metrics["overlap"] == 0.25


def test_the_share_of_episodes_that_are_left_out_is_a_metric():
    run: Any = Run()
    run.algo = run.algo.model_copy(update={"leave_out": ["lazy"]})
    its = batch(3)
    for member, value in zip([m for g in its.groups for m in g.members], (1, 0, 0, 0), strict=True):
        member.metrics["lazy"] = float(value)
    assert Record(run).begun(its, report(3)).metrics["episode/left_out"] == 0.25


def test_a_batch_is_in_the_log_before_anything_else_has_it(clock):
    run: Any = Run()
    its = report(0, metrics={"reward/mean": 0.5, "loss": math.nan, "grad_norm": 1.0, "lr": 1.0})
    kept = written(run, its)
    order = ["overlap", "log", "evaluations", "metrics", "phases"]
    assert run.calls == [*order, "buffer", "buffer.changes", "changes", "on_step"]
    assert (kept["loss"], kept["rollout/queue"], "time/asleep" in kept) == (None, 3.0, False)
    assert run.written["log"] == (its, kept)
    assert run.written["overlap"] == (its.intervals,)
    assert run.written["evaluations"] == (1, "p", True)
    assert run.written["buffer"] == (1,)
    step, metrics = run.written["metrics"]
    assert (step, math.isnan(metrics["loss"]), run.history) == (0, True, [metrics])
    assert run.written["on_step"] == (0, metrics)
    (phases,) = run.written["phases"]
    assert (phases.step, phases.trainer, phases.others) == (0, its.intervals, {})


@pytest.mark.parametrize("version", [1, 5])
def test_a_version_that_is_there_already_is_not_published_again(version, clock):
    run: Any = Run(version=version)
    written(run, report(0, metrics={"reward/mean": 0.5, "grad_norm": 1.0, "lr": 1.0}))
    assert {"evaluations", "buffer"}.isdisjoint(run.calls)
    assert "changes" in run.calls


def test_a_run_without_evaluations_publishes_too(clock):
    run: Any = Run(evaluates=False)
    written(run, report(0, metrics={"reward/mean": 0.5, "grad_norm": 1.0, "lr": 1.0}))
    assert "buffer" in run.calls


def test_the_longest_sleep_of_an_engine_is_a_metric(clock):
    run: Any = Run(shares_devices=True)
    its = report(
        0,
        metrics={"reward/mean": 0.5, "grad_norm": 1.0, "lr": 1.0},
        others={"e": [("pause", 4.0, 5.0)], "trainer-1": [("optimizer", 1.0, 2.0)]},
    )
    kept = written(run, its)
    assert kept["time/asleep"] == 3.5
    (phases,) = run.written["phases"]
    assert phases.others == {
        "e": [("sleep", 1.0, 4.0), ("pause", 4.0, 5.0)],
        "trainer-1": [("optimizer", 1.0, 2.0)],
        "f": [("sleep", 1.0, 2.0), ("sleep", 5.0, 7.5)],
    }


def test_engines_that_did_not_sleep_slept_no_time(clock):
    run: Any = Run(shares_devices=True)
    run.devices = SimpleNamespace(slept=dict)
    its = report(0, metrics={"reward/mean": 0.5, "grad_norm": 1.0, "lr": 1.0})
    assert written(run, its)["time/asleep"] == 0


def test_throughput_counts_from_the_last_report(clock):
    run: Any = Run()
    found = Record(run)
    metrics = {"reward/mean": 0.5, "grad_norm": 1.0, "lr": 1.0}
    for now, sampled, expected in ((15.0, 100, (6.0, 20.0, 5.0)), (25.0, 130, (3.0, 3.0, 10.0))):
        clock.now, run.buffer.sampled_tokens = now, sampled
        kept = written(run, report(0, metrics=metrics), after=found)
        names = ("trained_tokens_per_s", "generated_tokens_per_s")
        pace = [kept[f"throughput/{name}"] for name in names]
        assert (*pace, kept["time/step"]) == expected
    assert 0 < written(run, report(0, metrics=metrics), after=found)["time/step"] < 1e-6  # at once


@pytest.mark.parametrize(
    ("step", "level", "said"),
    [
        (7, "INFO", "batch 7, trained again from the log, gave the same weights"),
        (8, "WARNING", "gave weights a, before the crash b: equal only up to rounding"),
        (9, "", ""),
    ],
)
def test_a_batch_that_is_trained_again_is_compared(step, level, said, clock, caplog):
    run: Any = Run(version=20)
    metrics = {"reward/mean": 0.5, "grad_norm": 1.0, "lr": 1.0}
    with caplog.at_level("INFO", "agentgym_rl.run.record"):
        written(run, report(step, metrics=metrics, parameters="a"))
    found = [(it.levelname, it.getMessage()) for it in caplog.records if "again" in it.getMessage()]
    assert [level for level, _ in found] == [level] * bool(level)
    assert all(said in text for _, text in found)
    assert run.parameters[step] == "a"


def test_more_intervals_add_to_those_of_a_report():
    before = report(
        0, metrics={"time/checkpoint": 1.0, "loss": 2.0}, others={"trainer-1": [("a", 0.0, 1.0)]}
    )
    own = [("checkpoint", 3.0, 5.0), ("weight_sync", 5.0, 5.5), ("weight_sync", 6.0, 6.25)]
    others = {"trainer-1": [("b", 1.0, 2.0)], "e": [("pause", 1.0, 3.0)]}
    found = with_intervals(before, own, others)
    assert found.metrics == {"time/checkpoint": 3.0, "loss": 2.0, "time/weight_sync": 0.75}
    assert found.intervals == [("optimizer", 1.0, 2.0), *own]
    assert found.others == {"trainer-1": [("a", 0.0, 1.0), ("b", 1.0, 2.0)], "e": others["e"]}
    assert before.metrics == {"time/checkpoint": 1.0, "loss": 2.0}


def test_a_checkpoint_is_begun_where_one_is_due_and_its_loss_ends_the_next(clock):
    run: Any = Run()
    steps, lost = [], []
    run.trainer = CONFIG.trainer

    class FailingRanks:
        async def checkpoint(self, step):
            steps.append(step)
            return {
                "trainer-0": [("checkpoint", 1.0, 3.0)],
                "trainer-1": [("checkpoint", 1.0, 2.0)],
            }

        async def complete(self, metrics):
            raise RanksFailed("gone")

        def lost(self, error):
            lost.append(error)

    async def play() -> None:
        saves: Any = Checkpoints(run, FailingRanks())
        its = report(4)
        assert await saves.begin(batch(4), its) is its
        due = batch(4, due=Due(checkpoint=True, evaluation=False))
        found = await saves.begin(due, its)
        assert found.metrics["time/checkpoint"] == 2
        assert found.others == {"trainer-1": [("checkpoint", 1.0, 2.0)]}
        async with asyncio.TaskGroup() as beside:
            saves.complete(batch(4), {}, beside)
            await saves.finish()
            saves.complete(due, {}, beside)
        with pytest.raises(RanksFailed, match="gone"):
            await saves.finish()

    asyncio.run(play())
    assert steps == [5]
    assert [str(error) for error in lost] == ["gone"]
