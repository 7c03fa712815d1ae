from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from agentgym_rl.algo import pack_rows
from agentgym_rl.algo.packing import lay_out, micro_batches
from agentgym_rl.core import UNKNOWN_EXPERT, Choices, Row
from agentgym_rl.core.token_records import ALL, FORCED, Experts, packed_set, set_of
from tests.kit.cases import cases


def row(tokens: list[int], mask: list[int], temperature: float = 1.0) -> Row:
    n = len(tokens)
    return Row(
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mask, np.bool_),
        behavior_logprobs=np.zeros(n, np.float32),
        policy_versions=np.zeros(n, np.int32),
        admitted_versions=np.zeros(n, np.int32),
        temperatures=np.full(n, temperature, np.float32),
        turn_ids=np.zeros(n, np.int32),
        times_s=np.zeros(n),
    )


def test_rows_lie_end_to_end():
    packed = pack_rows([row([5, 6, 7], [0, 1, 1]), row([8, 9], [0, 1], temperature=0.7)])
    assert packed.tokens.tolist() == [[5, 6, 7, 8, 9]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 0, 1]]
    assert packed.cu_seqlens.tolist() == [0, 3, 5]
    assert packed.positions.tolist() == [0, 1, 3]
    assert packed.targets.tolist() == [6, 7, 9]
    assert packed.temperatures.tolist() == pytest.approx([1, 1, 0.7])


def test_rows_that_cannot_train_are_refused():
    with pytest.raises(ValueError, match="nothing predicts"):
        pack_rows([row([1, 2], [0, 1]), row([3, 4], [1, 0])])
    with pytest.raises(ValueError, match="temperature 0"):
        pack_rows([row([1, 2], [0, 1], temperature=0.0)])
    with pytest.raises(ValueError, match="temperature nan"):
        pack_rows(
            [row([1, 2], [0, 1], temperature=0.5), row([1, 2], [0, 1], temperature=float("nan"))]
        )
    with pytest.raises(ValueError, match="no rows"):
        pack_rows([])


def chosen(index: list[int], mask: list[int], allowed: list[list[int]]) -> Row:
    """Return a row with the tokens that were allowed at each place."""
    sets = []
    for one in allowed:
        bits = np.zeros(16 if max(one) >= 8 else 8, np.bool_)
        bits[one] = True
        sets.append(packed_set(np.packbits(bits, bitorder="little").tobytes()))
    choices = Choices(np.array(index, np.int32), tuple(sets))
    return replace(row(list(range(len(index))), mask), choices=choices)


def test_a_prediction_excludes_what_its_own_set_does_not_hold():
    """The first set, the second one, none; beyond the bits of a set every token is excluded."""
    packed = pack_rows([chosen([ALL, 0, 1, ALL], [0, 1, 1, 1], [[1, 2], [2, 7]])])
    assert packed.allowed is not None
    barred = packed.allowed.barred(slice(0, 3), 10)
    assert [torch.nonzero(~one).flatten().tolist() for one in barred] == [
        [1, 2],
        [2, 7],
        list(range(10)),
    ]


def test_a_token_without_an_alternative_does_not_train():
    with pytest.raises(ValueError, match="no alternative"):
        pack_rows([chosen([ALL, FORCED], [0, 1], [[1, 2]])])
    assert pack_rows([chosen([ALL, FORCED, 0], [0, 0, 1], [[1, 2]])]).allowed is not None


def test_only_rows_that_share_a_beginning_have_branches():
    rows = [np.arange(4), np.arange(10, 14), np.array([0, 1, 2, 9])]
    assert lay_out(rows[:2], least=2).branches is None
    layout = lay_out(rows, least=2)
    assert layout.branches is not None
    assert [layout.tokens[path].tolist() for path in layout.paths] == [it.tolist() for it in rows]
    assert len(layout.branches.paths) == 4  # those of the one row that continues another


def test_tokens_of_a_row_without_experts_have_unknown_ones():
    ids = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    known = replace(row([1, 2, 3], [0, 1, 1]), experts=Experts(ids))
    packed = pack_rows([row([4, 5], [0, 1]), known])
    assert packed.experts is not None
    assert (packed.experts[:2] == UNKNOWN_EXPERT).all()
    assert packed.experts[2:].numpy().tolist() == ids.tolist()


def routed(tokens: list[int], ids: list[int] | None) -> Row:
    """Return a row whose tokens were each computed by one expert, or by unknown ones."""
    found = None if ids is None else Experts(np.array(ids, np.int16).reshape(-1, 1, 1))
    return replace(row(tokens, [0] + [1] * (len(tokens) - 1)), experts=found)


def test_tokens_are_shared_with_those_of_the_same_experts_alone():
    """Two rows of 20 equal tokens: of equal experts, of others at the third token, of the first
    expert and of unknown ones; and of other layers with the same sum."""
    tokens, ids = list(range(20)), [3, 1, 2] + [0] * 17
    first, other = routed(tokens, ids), routed(tokens, [3, 1, 1] + [0] * 17)

    def size(*rows: Row) -> int:
        packed = pack_rows(rows, share=True)
        for one, place in zip(rows, range(0, 20 * len(rows), 20), strict=True):
            trained = packed.targets[packed.index[place - place // 20 :][:19]]
            assert trained.tolist() == one.tokens[1:].tolist()
        return packed.tokens.shape[1]

    assert size(first, routed(tokens, ids)) == 20
    assert size(first, other) == 40  # a beginning of two tokens is too short
    long = tokens[:17] + tokens[:3]
    assert size(first, routed(long, ids)) == 20 + 3
    assert size(routed(tokens, [0] * 20), routed(tokens, None)) == 40
    layers = [np.array(two, np.int16).reshape(1, 2, 1).repeat(20, 0) for two in ([1, 2], [2, 1])]
    assert size(*(replace(first, experts=Experts(it)) for it in layers)) == 40


def test_the_sets_of_allowed_tokens_count_for_the_rows_that_have_them():
    """Of two rows the second has sets, one of which is in no trained token; sets have different
    lengths, and a prediction that two rows share has one entry for each set."""
    plain = row([0, 1, 2], [0, 1, 1])
    strict = chosen([ALL, 0, 1], [0, 1, 1], [[1, 9], [2], [4]])
    packed = pack_rows([plain, strict])
    assert packed.allowed is not None
    assert packed.allowed.sets.tolist() == [ALL, ALL, 0, 1]
    barred = packed.allowed.barred(slice(0, 4), 10)
    assert barred[:2].sum() == 0
    assert [torch.nonzero(~one).flatten().tolist() for one in barred[2:]] == [[1, 9], [2]]
    assert packed.allowed.barred(slice(2, 4), 3).tolist() == [
        [True, False, True],
        [True, True, False],
    ]
    assert pack_rows([row([0, 1], [0, 1])]).allowed is None


@cases("seed", range(4))
def test_sets_of_few_tokens_and_of_many_exclude_the_same_as_masks(seed):
    """Each kind is kept in its own way, in any order; logits may end within a set."""
    draw = np.random.default_rng(seed)
    allowed = [sorted(draw.choice(900, size, replace=False)) for size in (3, 700, 1, 256, 257, 2)]
    draw.shuffle(allowed)
    index = [ALL, *draw.integers(ALL, len(allowed), 12)]
    sets = tuple(set_of([*map(int, one)]) for one in allowed)
    choices = Choices(np.array(index, np.int32), sets)
    packed = pack_rows([replace(row(list(range(13)), [0] + [1] * 12), choices=choices)])
    assert packed.allowed is not None
    for vocab_size in (901, 450):
        barred = packed.allowed.barred(slice(2, 12), vocab_size)
        for one, place in zip(barred, index[3:], strict=True):
            left = range(vocab_size) if place == ALL else allowed[place]
            expected = [id for id in left if id < vocab_size]
            assert torch.nonzero(~one).flatten().tolist() == expected


def test_a_row_of_few_tokens_each_is_packed_without_masks():
    """A mask over 152k tokens has 19 kB; thousands of tokens have a set of their own."""
    sets = tuple(set_of([token, token + 1, 151_000]) for token in range(2000))
    choices = Choices(np.arange(-1, 2000).astype(np.int32), sets)
    packed = pack_rows([replace(row([0] * 2001, [0] + [1] * 2000), choices=choices)])
    assert packed.allowed is not None
    assert sum(it.nbytes for it in (packed.allowed.bits, packed.allowed.few)) == 2000 * 3 * 4


def test_predictions_that_differ_by_temperature_or_set_are_not_shared():
    tokens = list(range(20))
    rows = [row(tokens, [0] + [1] * 19), row(tokens, [0] + [1] * 19, temperature=0.5)]
    strict = chosen([ALL] + [0] * 19, [0] + [1] * 19, [list(range(8))])
    packed = pack_rows([rows[0], rows[0], rows[1], strict], share=True)
    assert packed.tokens.shape[1] == 20
    assert packed.num_row_tokens == 80
    assert len(packed.targets) == 3 * 19
    index = packed.index.view(4, 19)
    assert torch.equal(index[0], index[1])
    assert len({*index[0].tolist()} | {*index[2].tolist()} | {*index[3].tolist()}) == 57
    assert packed.temperatures[index[2]].unique().tolist() == [0.5]
    assert packed.temperatures[index[0]].unique().tolist() == [1.0]


def test_micro_batches_hold_every_row_within_the_budget():
    rows = [row(list(range(n)), [0] + [1] * (n - 1)) for n in (3, 5, 4)]
    for share, packs, expected in (
        (False, True, [[1], [0, 2]]),
        (False, False, [[0], [1], [2]]),
        (True, True, [[1], [0, 2]]),
    ):
        found = dict(enumerate(micro_batches(rows, 7, share=share, packs=packs)))
        assert [members for members, _ in found.values()] == expected
        for members, packed in found.values():
            assert packed.lengths == tuple(len(rows[i]) for i in members)
    for packs in (True, False):
        with pytest.raises(ValueError, match="row 1 has 5 tokens, the budget is 4"):
            [*micro_batches(rows, 4, share=False, packs=packs)]
