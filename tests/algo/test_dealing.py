"""Episodes of a minibatch dealt to ranks: each once, evenly, and together where that pays."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.algo import deal, num_distinct
from agentgym_rl.algo.dealing import _WORTH
from tests.kit.cases import cases

Rows = list[list[np.ndarray]]
SHAPES = st.lists(  # groups: the tokens of their prompt, and those of the rows of each member
    st.tuples(
        st.sampled_from([0, 5, 20, 100, 400]),
        st.lists(st.lists(st.integers(1, 200), max_size=3), min_size=1, max_size=8),
    ),
    max_size=8,
)


def made(shapes: Sequence[tuple[int, list[list[int]]]], system: int, seed: int = 0):
    """Episodes of these shapes whose rows all begin with `system` tokens, and their groups."""
    draw = np.random.default_rng(seed)
    first = draw.integers(0, 30_000, system)
    episodes: Rows = []
    groups: list[int] = []
    for number, (prompt, members) in enumerate(shapes):
        head = np.concatenate((first, draw.integers(0, 30_000, prompt)))
        for lengths in members:
            own = [draw.integers(0, 30_000, length) for length in lengths]
            episodes.append([np.concatenate((head, its)).astype(np.int32) for its in own])
            groups.append(number)
    return episodes, groups


def sizes_of(episodes: Rows, parts: list[list[int]]) -> list[int]:
    return [num_distinct([row for i in part for row in episodes[i]]) for part in parts]


@settings(max_examples=40)
@given(SHAPES, st.sampled_from([0, 40]), st.integers(1, 9))
def test_the_fullest_part_is_bounded(shapes, system, num_parts):
    episodes, groups = made(shapes, system)
    parts = deal(episodes, groups, num_parts)
    assert parts == deal(episodes, groups, num_parts)
    assert len(parts) == num_parts
    assert sorted(index for part in parts for index in part) == list(range(len(episodes)))
    sizes, lengths = sizes_of(episodes, parts), [sum(map(len, rows)) for rows in episodes]
    # The bound of Graham 1969 on tokens, without regard to beginnings that rows share.
    assert max(sizes) <= sum(lengths) / num_parts + max(lengths, default=0)
    # Nor is it much worse than whole groups in the best of all parts, one for each group.
    if len(set(groups)) <= num_parts:
        whole = [[i for i, of in enumerate(groups) if of == group] for group in set(groups)]
        assert max(sizes) * _WORTH <= max(sizes_of(episodes, whole), default=0)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 300), min_size=12, max_size=40), st.integers(2, 6))
def test_rows_that_share_nothing_are_dealt_by_length(lengths, num_parts):
    """First-fit decreasing at the smallest capacity is within 13/11 of the optimum, Yue 1990."""
    episodes, groups = made([(0, [[n] for n in lengths])], 0)
    parts = deal(episodes, groups, num_parts)
    loads = [sum(lengths[i] for i in part) for part in parts]
    assert loads == sorted(loads, reverse=True)
    most = max(sum(lengths) / num_parts, max(lengths))
    assert loads[0] <= most + sorted(lengths)[-num_parts]


def test_groups_with_a_long_prompt_stay_together():
    episodes, groups = made([(1500, [[100 + 10 * k] for k in range(8)])] * 4, 0)
    parts = deal(episodes, groups, 4)
    assert [{groups[i] for i in part} == {groups[part[0]]} for part in parts] == [True] * 4


def test_groups_with_a_short_prompt_are_split_where_this_is_more_even():
    episodes, groups = made([(20, [[100 + 10 * k] for k in range(8)])] * 2, 0)
    parts = deal(episodes, groups, 4)
    loads = [sum(len(episodes[i][0]) for i in part) for part in parts]
    assert sum(loads) / 4 >= 0.98 * max(loads)


def test_a_group_is_on_as_few_ranks_as_it_has_to_be():
    """Two groups on four ranks: whole they would leave two without a row; each has two."""
    episodes, groups = made([(1000, [[200]] * 8)] * 2, 0)
    parts = deal(episodes, groups, 4)
    assert [len({groups[i] for i in part}) for part in parts] == [1] * 4
    assert sizes_of(episodes, parts) == [1800] * 4


def test_an_episode_counts_its_own_beginnings_once():
    """Each of four episodes has ten rows with a common beginning: 1,000 + 10 · 10 tokens, as many
    as the long row of the fifth."""
    many = [(0, [[10] * 10])] * 4
    episodes: Rows = []
    for seed in range(4):
        ((rows,), _) = made(many[:1], 1000, seed)
        episodes.append(rows)
    ((long,), _) = made([(0, [[1100]])], 0, 9)
    parts = deal([*episodes, long], range(5), 5)
    assert sorted(map(len, parts)) == [1] * 5
    assert set(sizes_of([*episodes, long], parts)) == {1100}


@cases("num_parts", [2, 3, 8])
def test_one_long_episode_leaves_the_others_to_the_other_ranks(num_parts):
    episodes, groups = made([(0, [[1000], *[[20]] * 14])], 0)
    first, *others = deal(episodes, groups, num_parts)
    assert first == [0]
    assert max(map(len, others)) - min(map(len, others)) <= 1


@cases("count", [0, 1, 3])
def test_parts_may_be_empty(count):
    episodes, groups = made([(30, [[50]] * count)], 0)
    parts = deal(episodes, groups, 4)
    assert sorted(map(len, parts)) == [0] * (4 - count) + [1] * count
    assert sorted(i for part in deal([[], [], []], [0, 0, 1], 2) for i in part) == [0, 1, 2]
