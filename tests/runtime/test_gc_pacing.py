"""How often Python looks for garbage."""

import asyncio
import gc

import pytest

from agentgym_rl.runtime import gc_pacing, paced_collections
from agentgym_rl.runtime.gc_pacing import MOST_UNSEEN, YOUNG


class Node:
    """In a cycle with itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def now(monkeypatch):
    """A clock that only tests move."""
    found = [0.0]
    monkeypatch.setattr(gc_pacing.time, "perf_counter", lambda: found[0])
    return found


def _pace():
    return next(c.__self__ for c in gc.callbacks if c.__module__ == gc_pacing.__name__)


def _look(generation: int = 0, *, collected: int = 0) -> None:
    """A collection that finds so much."""
    _pace().watch("start", {"generation": generation})
    _pace().watch("stop", {"generation": generation, "collected": collected})


@pytest.fixture
def no_other():
    """No collection but those of the test."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_other", "now")
def test_young_objects_are_left_alone_while_looks_at_some_find_nothing(monkeypatch):
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))

    def unseen(collected: int) -> int:
        """How many collections look at nothing before one does."""
        for count in range(100):
            frozen.clear()
            _look(collected=collected)
            if not frozen:
                return count
        raise AssertionError("none does")

    with paced_collections():
        assert [unseen(0) for _ in range(6)] == [0, 1, 3, 7, MOST_UNSEEN, MOST_UNSEEN]
        assert unseen(YOUNG) == MOST_UNSEEN
        assert [unseen(YOUNG) for _ in range(3)] == [0, 0, 0]
        assert [unseen(0) for _ in range(3)] == [0, 1, 3]


@pytest.mark.usefixtures("no_other")
def test_everything_is_looked_at_again_when_it_took_a_small_share_of_the_time(now, monkeypatch):
    collected: list[float] = []
    monkeypatch.setattr(gc_pacing, "_collect", lambda: collected.append(now[0]))

    async def main() -> None:
        with paced_collections(share=0.1):
            _pace().watch("start", {"generation": 2})
            now[0] += 2.0
            _pace().watch("stop", {"generation": 2, "collected": 0})
            for _ in range(100):
                now[0] += 1.0
                _look(collected=YOUNG)
                await asyncio.sleep(0)
                if collected:
                    break

    asyncio.run(main())
    assert collected == [22.0]


def test_without_an_event_loop_everything_waits_for_one(now, monkeypatch):
    collected: list[bool] = []
    monkeypatch.setattr(gc_pacing, "_collect", lambda: collected.append(True))

    async def main() -> None:
        _look(collected=YOUNG)
        await asyncio.sleep(0)

    with paced_collections(share=0.1):
        now[0] += 1000.0
        _look(collected=YOUNG)
        assert not collected
        asyncio.run(main())
        assert collected


def test_afterwards_all_is_as_before():
    before = gc.get_threshold(), list(gc.callbacks)
    with pytest.raises(ValueError, match="x"), paced_collections():
        raise ValueError("x")
    assert (gc.get_threshold(), list(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0


def _alive() -> int:
    return sum(type(found) is Node for found in gc.get_objects())


def test_garbage_is_collected_where_there_is_some():
    with paced_collections():
        for _ in range(YOUNG * 4):
            Node()
        assert _alive() < YOUNG * 2


def test_garbage_that_was_not_looked_at_is_collected_with_everything():
    async def main() -> int:
        with paced_collections(share=1e9):
            kept = [[] for _ in range(YOUNG * 3)]  # no garbage: the next ones are left alone
            for _ in range(YOUNG // 2):
                Node()
            kept += [[] for _ in range(YOUNG * 2)]
            await asyncio.sleep(0)
            return _alive()

    assert asyncio.run(main()) == 0


@pytest.mark.usefixtures("no_other")
def test_many_new_objects_are_looked_at_earlier(now, monkeypatch):
    """Whole sessions of a gateway are in cycles: they took 300 MB for each thousand of them."""
    collected: list[float] = []
    monkeypatch.setattr(gc_pacing, "_collect", lambda: collected.append(now[0]))

    async def first(objects: int) -> float:
        collected.clear()
        with paced_collections(share=0.01):
            began = now[0]
            _look(2)
            now[0] += 1.0
            _pace().took_s = 1.0
            while not collected:
                for _ in range(objects // YOUNG):
                    _look(collected=YOUNG)
                now[0] += 1.0
                await asyncio.sleep(0)
            return collected[0] - began

    assert asyncio.run(first(YOUNG)) == pytest.approx(51, abs=2)  # a million of them
    assert asyncio.run(first(5 * YOUNG)) == pytest.approx(11, abs=2)  # 0.1 of the time
