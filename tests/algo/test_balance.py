from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.algo import fill_bins
from agentgym_rl.algo.balance import balance


@given(st.lists(st.integers(1, 100), max_size=40), st.integers(1, 6))
def test_balance_places_every_index_once(sizes, num_parts):
    parts = balance(sizes, num_parts)
    assert len(parts) == num_parts
    assert sorted(i for part in parts for i in part) == list(range(len(sizes)))


def test_balance_is_within_two_percent_on_a_batch():
    rng = random.Random(0)
    sizes = [rng.randint(35, 110) for _ in range(64)]
    totals = [sum(sizes[i] for i in part) for part in balance(sizes, 4)]
    assert (max(totals) - min(totals)) / (sum(totals) / 4) < 0.02


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 200))
def test_bins_keep_the_budget(lengths, budget):
    bins = fill_bins(lengths, budget)
    assert sorted(i for part in bins for i in part) == list(range(len(lengths)))
    assert all(part and sum(lengths[i] for i in part) <= budget for part in bins)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 200), st.integers(1, 12))
def test_more_bins_are_not_fuller(lengths, budget, least):
    few, more = fill_bins(lengths, budget), fill_bins(lengths, budget, least=least)
    assert sorted(i for part in more for i in part) == list(range(len(lengths)))
    assert all(more)
    assert len(few) <= len(more) <= max(len(few), least)
    fullest = [max((sum(lengths[i] for i in part) for part in of), default=0) for of in (few, more)]
    assert fullest[1] <= budget
    assert fullest[1] <= fullest[0] + max(lengths, default=0)


def test_bins_are_even_where_one_of_them_is_full():
    assert fill_bins([6, 3, 3, 1], 6) == [[2], [1, 3], [0]]  # not 6, 6 and 1 tokens


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match="row 1 has 9 tokens, the budget is 8"):
        fill_bins([3, 9], 8)
    with pytest.raises(ValueError, match="num_parts is 0"):
        balance([1], 0)
