"""The admission law, the hard staleness bound, and budgets that come back."""

import json
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.config import RolloutConfig
from agentgym_rl.controller import Buffer
from agentgym_rl.controller.buffer import capacity
from tests.kit.cases import cases
from tests.kit.groups import make_group

GOLDEN = Path(os.environ.get("ARL_GOLDEN", Path(__file__).parents[1] / "kit/golden.json"))


@cases("case", json.loads(GOLDEN.read_text())["admission"])
def test_admission_golden(case):
    found = capacity(
        version=case["version"],
        batch=case["batch"],
        max_staleness=case["max_staleness"],
        max_concurrent=case["max_concurrent"],
        running=case["running"],
        accepted=case["accepted"],
    )
    assert found == case["capacity"]


def make_buffer(**settings) -> Buffer:
    config = RolloutConfig(**({"groups_per_batch": 2, "max_staleness": 1} | settings))
    return Buffer(config, total_groups=100)


def fill(buffer: Buffer, *groups) -> None:
    for group in groups:
        buffer.admit()
        buffer.accept(group)


def test_admission_stops_at_the_lookahead(group):
    buffer = make_buffer(max_concurrent=100)
    for _ in range(4):  # (1 + 0 + 1) batches of 2
        buffer.admit()
    assert buffer.capacity == 0
    buffer.publish(1)
    assert buffer.capacity == 2


def test_eta_zero_admits_one_batch_at_a_time():
    buffer = make_buffer(max_staleness=0, max_concurrent=100)
    assert buffer.capacity == 2


def test_a_dropped_group_gives_its_budget_back(group):
    buffer = make_buffer(max_concurrent=100)
    fill(buffer, group("old", [0]), group("new", [2]))
    buffer.publish(2)
    without_drop = buffer.capacity
    assert [g.group_id for g in buffer.drop_stale()] == ["old"]
    assert (buffer.accepted, buffer.dropped["stale"]) == (1, 1)
    assert buffer.capacity == without_drop + 1


def test_staleness_is_that_of_the_oldest_trained_token(group):
    assert group("mixed", [3, 1, 4]).staleness(5) == 4
    assert group("none", []).staleness(5) == 0


def test_the_bound_itself_is_allowed(group):
    buffer = make_buffer(max_staleness=2)
    fill(buffer, group("at-the-bound", [1]), group("over", [0]))
    buffer.publish(3)
    assert [g.group_id for g in buffer.drop_stale()] == ["over"]


def test_policy_train_keeps_stale_groups(group):
    buffer = make_buffer(stale_policy="train")
    fill(buffer, group("old", [0]), group("older", [0]))
    buffer.publish(9)
    assert buffer.drop_stale() == []
    assert buffer.complete


def test_oldest_first_each_group_once(group):
    buffer = make_buffer(max_staleness=5, max_concurrent=100)
    fill(buffer, group("new", [3]), group("old", [1]), group("mid", [2]), group("late", [1]))
    buffer.publish(3)
    assert [g.group_id for g in buffer.take()] == ["old", "late"]
    assert [g.group_id for g in buffer.take()] == ["mid", "new"]
    assert not buffer.complete


def test_failed_and_filtered_groups_return_their_budget():
    buffer = make_buffer()
    for cause in ("filtered", "infra_error"):
        buffer.admit()
        buffer.give_back(cause)
    assert (buffer.running, buffer.accepted) == (0, 0)
    assert buffer.dropped == {"filtered": 1, "infra_error": 1}


def test_admission_never_exceeds_what_the_run_trains():
    buffer = Buffer(RolloutConfig(groups_per_batch=4, max_staleness=9), total_groups=3)
    for _ in range(3):
        buffer.admit()
    assert buffer.capacity == 0


@given(st.lists(st.sampled_from(["admit", "accept", "fail", "train"]), max_size=200))
def test_the_bound_holds_under_any_order_of_events(events):
    """No admission sequence can make a batch whose data is older than η when trained at once."""
    buffer = make_buffer(groups_per_batch=2, max_staleness=2, max_concurrent=50)
    playing: list[int] = []
    for number, event in enumerate(events):
        if event == "admit" and buffer.capacity >= 1:
            buffer.admit()
            playing.append(buffer.version)
        elif event == "accept" and playing:
            buffer.accept(make_group(f"g{number}", [playing.pop()]))
        elif event == "fail" and playing:
            playing.pop()
            buffer.give_back("aborted")
        elif event == "train":
            buffer.drop_stale()
            if buffer.complete:
                assert all(g.staleness(buffer.version) <= 2 for g in buffer.take())
                buffer.publish(buffer.version + 1)
    assert buffer.running == len(playing)
