"""Common beginnings of rows, and bins that keep them together."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from agentgym_rl.algo import fill_bins, fill_shared, num_distinct
from agentgym_rl.algo.prefixes import LEAST_SHARED, _Costs, chained
from tests.kit.cases import cases

RNG = np.random.default_rng()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A start of each test at the same state, whatever tests ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def own(length: int) -> np.ndarray:
    return RNG.integers(0, 30, length).astype(np.int32)


def group(prompt: int, *lengths: int) -> list[np.ndarray]:
    head = own(prompt)
    return [np.concatenate((head, own(length))) for length in lengths]


def tree(depth: int, start: np.ndarray) -> list[np.ndarray]:
    """Rows of a random tree; some are the beginning of others."""
    if not depth:
        return [start]
    arms = [np.concatenate((start, own(int(RNG.integers(1, 40))))) for _ in range(3)]
    return [start, *(row for arm in arms for row in tree(depth - 1, arm))]


def distinct(rows: list[np.ndarray]) -> int:
    return len({row[: end + 1].tobytes() for row in rows for end in range(len(row))})


def filled(rows: list[np.ndarray], budget: int) -> list[list[int]]:
    return fill_shared([len(row) for row in rows], chained(rows), budget)


def test_a_chain_shares_all_that_any_two_rows_share():
    for _ in range(20):
        rows = tree(3, own(20))
        RNG.shuffle(rows)
        chain = chained(rows, least=1)
        assert sorted(chain.order) == list(range(len(rows)))
        assert sum(map(len, rows)) - sum(chain.shared) == distinct(rows)
        assert distinct(rows) <= num_distinct(rows)


def test_short_beginnings_are_not_shared():
    long, short = group(LEAST_SHARED, 9, 8), group(LEAST_SHARED - 1, 7, 9)
    short[1][LEAST_SHARED - 1] = 31  # not by chance like the other one's
    assert chained([*long, *short]).shared == [0, LEAST_SHARED, 0, 0]
    assert chained([]).order == []
    few = [np.array(row) for row in ([4], [1, 2], [1, 3], [1], [1])]
    for least in (0, 1):
        assert chained(few, least=least) == ([0, 2, 1, 3, 4], [0, 0, 1, 1, 1])
    assert chained(few, least=2).shared == [0] * 5


def test_rows_that_share_nothing_are_packed_as_ever():
    rows = [own(int(n)) for n in RNG.integers(20, 200, 50)]
    assert chained(rows).order == list(range(50))
    assert filled(rows, 512) == fill_bins([len(row) for row in rows], 512)


@cases("budget", [150, 400, 1000, 10_000])
def test_bins_are_within_the_budget_and_hold_every_row_once(budget):
    for _ in range(10):
        rows = [*tree(3, own(20)), *group(60, 30, 20, 40), *(own(50) for _ in range(5))]
        bins = filled(rows, budget)
        assert sorted(index for part in bins for index in part) == list(range(len(rows)))
        parts = [[rows[i] for i in part] for part in bins]
        assert all(num_distinct(part) <= budget for part in parts)
        assert len(bins) <= len(fill_bins([len(row) for row in rows], budget))


@cases("least", [2, 3, 5, 9, 40])
def test_more_bins_are_smaller(least):
    """Families are cut where this makes the largest bin smaller, and not where it does not."""
    for rows in (tree(3, own(20)), [*group(60, 30, 20, 40), *(own(50) for _ in range(5))]):
        lengths, chain = [len(row) for row in rows], chained(rows)
        few = fill_shared(lengths, chain, 10_000)
        more = fill_shared(lengths, chain, 10_000, least=least)
        assert sorted(index for part in more for index in part) == list(range(len(rows)))
        assert len(few) == 1 < len(more) <= least
        sizes = [num_distinct([rows[i] for i in part]) for part in more]
        assert max(sizes) < num_distinct(rows)
    same = [own(100)] * 4
    assert len(fill_shared([100] * 4, chained(same), 1000, least=4)) == 1, "it would save nothing"


def test_groups_stay_together():
    groups = [group(150, *[60] * 8) for _ in range(4)]
    rows = [row for members in zip(*groups, strict=True) for row in members]
    (two, other) = filled(rows, 1600)  # a group has 630 distinct tokens
    assert {i % 4 for i in two}.isdisjoint({i % 4 for i in other})
    assert len(filled(rows, 4096)) == 1


def test_a_family_too_large_for_a_bin_is_cut_evenly():
    rows = group(100, *[50] * 40)
    sizes = [num_distinct([rows[i] for i in part]) for part in filled(rows, 1000)]
    assert len(sizes) <= 4  # by rows it would take 7
    assert max(sizes) - min(sizes) <= 60


def test_copied_keys_take_room_too():
    rows = group(900, *[5] * 60)
    assert len(filled(rows, 1600)) == 1  # 1,200 distinct tokens, and a third of that for copies
    few = filled(rows, 1300)
    assert 1 < len(few) <= 4  # by rows it would take 60
    assert max(num_distinct([rows[i] for i in part]) for part in few) <= 1000


def test_a_row_above_the_budget_is_named():
    with pytest.raises(ValueError, match="row 1 has 9 tokens, the budget is 8"):
        filled([own(3), own(9)], 8)


def test_a_family_is_cut_where_its_costliest_piece_is_cheapest():
    """Every way to cut a family in as few pieces is tried."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        head = rng.integers(0, 30, 20)
        rows = [np.concatenate((head, rng.integers(0, 30, n))) for n in rng.integers(1, 60, 7)]
        chain = chained(rows)
        costs = _Costs([len(row) for row in rows], chain)
        pieces = costs.cut(range(7), 120)
        ways = [
            [range(a, b) for a, b in pairwise([0, *cuts, 7])]
            for cuts in combinations(range(1, 7), len(pieces) - 1)
        ]
        cheapest = min(max(map(costs.of, way)) for way in ways)
        assert max(map(costs.of, pieces)) == cheapest


def test_a_family_stays_together_where_cutting_it_saves_no_bin():
    """Families of 60, 80 and 40 distinct tokens, for two bins of 110 either way."""
    families = [group(20, *tails) for tails in ([20] * 2, [20] * 3, [10] * 2)]
    rows = [row for family in families for row in family]
    assert sorted(filled(rows, 110)) == [[0, 1, 5, 6], [2, 3, 4]]


def test_only_a_row_that_goes_on_after_what_it_shares_needs_copied_keys():
    rows = [np.array([30, *tail]) for tail in (range(24), range(1, 25))]
    costs = _Costs([25, 25], chained(rows, least=1))
    assert costs.of([0, 1]) == 49 + 25 // 12
    assert costs.of([0]) == costs.of([1]) == 25
    twice = _Costs([25, 25], chained([rows[0]] * 2, least=1))
    assert twice.of([0, 1]) == 25


@cases("least", range(2, 13))
@cases("budget", [260, 300, 400, 800])
def test_no_more_bins_than_asked_for(budget, least):
    """Most tokens of these rows are of their prompt, so that small pieces have one row each."""
    for lengths in ([10] * 10, [5, 10, 40, 60], [50] * 3):
        rows = [*group(200, *lengths), *group(150, *lengths)]
        each, chain = [len(row) for row in rows], chained(rows)
        few = fill_shared(each, chain, budget)
        more = fill_shared(each, chain, budget, least=least)
        assert sorted(index for part in more for index in part) == list(range(len(rows)))
        assert len(more) <= max(len(few), least)
        assert all(num_distinct([rows[i] for i in part]) <= budget for part in more)
