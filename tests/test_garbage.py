"""How often Python looks for garbage."""

import gc

import pytest

from agentgym_rl import garbage
from agentgym_rl.garbage import paced_collections


@pytest.fixture
def now(monkeypatch):
    """A clock that only tests move, and no collection but theirs."""
    found = [0.0]
    monkeypatch.setattr(garbage.time, "perf_counter", lambda: found[0])
    return found


def _collect(now: list[float], generation: int, took: float) -> None:
    for callback in [c for c in gc.callbacks if c.__module__ == garbage.__name__]:
        callback("start", {"generation": generation})
        now[0] += took
        callback("stop", {"generation": generation})


def test_everything_is_looked_at_again_when_it_took_a_small_share_of_the_time(now):
    with paced_collections(share=0.1):
        whole = gc.get_threshold()
        _collect(now, 2, took=2.0)
        assert gc.get_threshold()[2] > 10**6
        now[0] += 15.0
        _collect(now, 1, took=0.0)
        assert gc.get_threshold()[2] > 10**6
        now[0] += 5.0
        _collect(now, 1, took=0.0)
        assert gc.get_threshold() == whole


def test_afterwards_all_is_as_before():
    before = gc.get_threshold(), list(gc.callbacks)
    with pytest.raises(ValueError, match="x"), paced_collections():
        raise ValueError("x")
    assert (gc.get_threshold(), list(gc.callbacks)) == before


def test_garbage_is_collected():
    class Node:
        def __init__(self) -> None:
            self.itself = self

    with paced_collections():
        for _ in range(garbage.YOUNG * 2):
            Node()
        count = sum(type(found) is Node for found in gc.get_objects())
    assert count < garbage.YOUNG * 2
