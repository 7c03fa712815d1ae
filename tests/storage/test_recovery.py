"""Whatever moment a run dies at, what survives was trained once, and nothing is skipped."""

import json
import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from arl_audit.exactly_once import audit_ledger

from agentgym_rl.controller import Buffer
from agentgym_rl.core import Outcome
from agentgym_rl.storage import newest_checkpoint
from agentgym_rl.storage.recovery import Result, recover
from tests.kit.groups import make_group
from tests.kit.lives import STEPS, Mortal, begin, live


@pytest.fixture
def run(tmp_path):
    begin(tmp_path / "run")
    return tmp_path / "run"


def change(run, statement: str, *values) -> None:
    with closing(sqlite3.connect(run / "episodes.db")) as log, log:
        assert log.execute(statement, values).rowcount


def test_the_result_of_a_group_is_the_mean_of_the_members_that_train():
    found = make_group("a", [3, 5], reward=0.5)
    assert Result.of(found, "key") == Result(0, "key", 3, 0.25)
    left_out = [replace(member, outcome=Outcome.ABORTED) for member in found.members]
    assert Result.of(replace(found, members=[found.members[1], left_out[0]]), "key").reward == 0.5
    assert Result.of(replace(found, members=left_out), "key") is None


def test_a_run_without_a_crash_is_in_order(run):
    assert live(run).step == STEPS
    report = audit_ledger(run)
    assert (report["faults"], report["finished"], report["incarnations"]) == ([], True, 1)
    assert report["groups_trained"] == report["groups"]["consumed"]


@pytest.mark.parametrize("number", range(12))
def test_any_number_of_crashes_at_any_moment(run, number):
    draw = random.Random(number)
    for _ in range(100):
        live(run, dies_at=draw.randint(1, 14), after=draw.random() < 0.5)
        report = audit_ledger(run)
        assert report["faults"] == []
        assert report["batches_trained_again"] == report["of_these_bit_for_bit"]
        if report["finished"]:
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("number", range(6))
def test_trainers_are_lost_between_crashes_too(run, number):
    draw = random.Random(number)
    for _ in range(100):
        live(run, dies_at=draw.randint(4, 30), loses=lambda: draw.random() < 0.15)
        report = audit_ledger(run)
        assert report["faults"] == []
        assert report["batches_trained_again"] == report["of_these_bit_for_bit"]
        if report["finished"]:
            return
    raise AssertionError("it never ends")


def test_a_lost_trainer_costs_the_groups_nothing(run):
    losses = iter([False] * 7 + [True] + [False] * 100)  # in hand: the third batch
    assert live(run, loses=lambda: next(losses)).step == STEPS
    report = audit_ledger(run)
    assert (report["faults"], report["finished"], report["incarnations"]) == ([], True, 2)


def test_batches_after_the_checkpoint_are_trained_again_on_the_same_groups(run):
    first = live(run, dies_at=20)
    done = len(first.seen)
    assert done % 2, "it shall die between two checkpoints"
    second = live(run)
    assert second.seen[0] == first.seen[-1]
    report = audit_ledger(run)
    assert (report["batches_trained_again"], report["of_these_bit_for_bit"]) == (1, 1)


def test_a_second_crash_before_the_batches_of_the_first_are_there_again(run):
    first = live(run, dies_at=20)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    for dies_at in (1, 2, 3):
        live(run, dies_at=dies_at)
        assert audit_ledger(run)["faults"] == []
    assert audit_ledger(run)["batches"] < len(first.seen)
    assert live(run).step == STEPS
    assert audit_ledger(run)["faults"] == []


def test_a_checkpoint_cut_short_is_passed_over(run, caplog):
    live(run, dies_at=30)
    checkpoints = run / "checkpoints"
    newest = newest_checkpoint(checkpoints)
    (newest / "manifest.json").write_text('{"step": ')
    assert newest_checkpoint(checkpoints) != newest
    assert "skipping a checkpoint" in caplog.text
    assert live(run).step == STEPS
    assert audit_ledger(run)["faults"] == []


def test_without_any_checkpoint_it_begins_with_the_model_and_the_same_batches(run):
    first = live(run, dies_at=20)
    shutil.rmtree(run / "checkpoints")
    second = live(run)
    assert second.seen[: len(first.seen)] == first.seen
    assert audit_ledger(run)["faults"] == []


def test_numbers_are_of_the_batches_before_the_checkpoint_and_hashes_of_those_after(run):
    live(run)
    found = recover(run / "episodes.db", step=2, checkpoint=None, incarnation=2)
    assert len(found.history) == 2
    assert list(found.parameters) == list(found.leased) == list(range(2, STEPS))


# ---------------------------------------------------------------- planted bugs
class SkipsALease(Mortal):
    """Forgets to record one group of a batch that it hands out."""

    async def lease(self, groups, step):
        await super().lease(groups[1:] if step == 3 else groups, step)


def test_a_skipped_lease_is_noticed(run):
    live(run, log_type=SkipsALease)
    faults = audit_ledger(run)["faults"]
    assert any("was trained in batch 3, and the log says: waiting" in fault for fault in faults)
    assert any("was trained on other groups than the log gave it" in fault for fault in faults)


def test_a_group_given_to_two_batches_is_noticed(run, monkeypatch):
    plain, before = Buffer.take, []

    def take(self):
        batch = plain(self)
        if self.version == 3:
            self._waiting.append(batch[0])
            batch = [before[-1][0], *batch[1:]]  # which the last batch had
        before.append(batch)
        return batch

    monkeypatch.setattr(Buffer, "take", take)
    live(run)
    assert any("was trained twice" in fault for fault in audit_ledger(run)["faults"])


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM groups WHERE group_id = 'g3'", "g3 of batch 1 is not whole"),
        ("DELETE FROM trajectories WHERE episode_id = 'g3-1'", "g3 of batch 1 is not whole"),
        ("DELETE FROM steps WHERE step = 2", "batches are missing"),
        ("UPDATE groups SET status = 'waiting' WHERE group_id = 'g3'", "the log says: waiting"),
        ("UPDATE steps SET parameters = 'x' WHERE step = 5", "step-6 has other weights"),
        ("UPDATE groups SET task_index = 77 WHERE group_id = 'g3'", "tasks were skipped: 3"),
    ],
)
def test_a_log_that_was_changed_is_noticed(run, statement, said):
    live(run)
    change(run, statement)
    assert any(said in fault for fault in audit_ledger(run)["faults"])


def test_metrics_that_lack_a_step_are_noticed(run):
    live(run)
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert [json.loads(line)["step"] for line in lines] == list(range(STEPS))
    file.write_text("".join(lines[:2] + lines[3:]))
    assert any("metrics.jsonl" in fault for fault in audit_ledger(run)["faults"])
