"""Epochs: every task once in each, in an order that (seed, epoch) alone decides."""

import itertools
from collections import Counter

import pytest

from agentgym_rl.core import ConfigError, SeededTasks, Task, TaskSource
from agentgym_rl.gym.data import Epochs, without_end
from agentgym_rl.gym.data.epochs import permuted
from tests.kit.cases import cases


class Counted(TaskSource):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return Task(f"t{index}", index)


def ids(tasks: TaskSource, *indices: int) -> list[str]:
    return [tasks[index].id for index in indices]


@cases("length", [1, 2, 3, 7, 256, 257, 1000])
def test_an_epoch_has_every_task_once(length):
    tasks = Epochs(Counted(length), seed=3)
    for epoch in range(3):
        found = ids(tasks, *range(epoch * length, (epoch + 1) * length))
        assert sorted(found) == sorted(ids(Counted(length), *range(length)))


def test_epochs_and_seeds_have_orders_of_their_own():
    one, other = Epochs(Counted(50), seed=1), Epochs(Counted(50), seed=2)
    orders = [ids(one, *range(50 * e, 50 * e + 50)) for e in range(4)] + [ids(other, *range(50))]
    assert len({tuple(order) for order in orders}) == 5
    assert orders[0] == ids(Epochs(Counted(50), seed=1), *range(50))
    assert ids(one, 163, 12) == [orders[3][13], orders[0][12]]  # in any order, from anywhere


def test_all_orders_are_as_likely():
    """6 orders of 3 tasks, 600 epochs: chi-square with 5 degrees of freedom, p = 0.001."""
    tasks = Epochs(Counted(3), seed=0)
    seen = Counter(tuple(ids(tasks, 3 * e, 3 * e + 1, 3 * e + 2)) for e in range(600))
    assert len(seen) == 6
    assert sum((count - 100) ** 2 / 100 for count in seen.values()) < 20.5


def test_neighbours_do_not_stay_neighbours():
    length = 10_000
    order = [permuted(i, length, key="7/0") for i in range(length)]
    jumps = [abs(a - b) for a, b in itertools.pairwise(order)]
    assert 0.3 < sum(jumps) / len(jumps) / length < 0.37  # of two uniform numbers: a third


def test_without_shuffling_the_order_is_the_source_s():
    tasks = Epochs(Counted(3), shuffle=False)
    assert ids(tasks, *range(7)) == [*ids(Counted(3), 0, 1, 2) * 2, "t0"]


def test_what_never_ends_is_left_alone_and_what_is_empty_is_refused():
    endless = SeededTasks("train")
    assert without_end(endless, seed=1, shuffle=True) is endless
    with pytest.raises(ConfigError, match="no tasks"):
        without_end(Counted(0), seed=1, shuffle=True)
    with pytest.raises(IndexError):
        Epochs(Counted(3))[-1]
    with pytest.raises(TypeError):
        len(Epochs(Counted(3)))
