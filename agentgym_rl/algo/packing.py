"""The packing of rows end to end into one sequence, without padding; a beginning that several rows
share may be packed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym_rl.core import UNKNOWN_EXPERT, Choices, Row, few_ids
from agentgym_rl.core.token_records import ALL, FORCED, joined, unpacked_set

from .balance import check_fit, fill_bins
from .prefixes import LEAST_SHARED, Chain, Tokens, chained, fill_shared

_NO_TOKEN = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """The pieces of packed rows that continue tokens of earlier pieces. Together the pieces are a
    tree, and a token attends to the path from the root to itself."""

    shared: tuple[int, ...]
    """The number of tokens before each piece in its rows; 0 for a row that is packed completely."""
    paths: Tensor
    """The places of all tokens of a row, from its first one to the last of the piece, [K] int64:
    one path after the other, for each piece with tokens before it; always on the CPU."""
    longest: int
    """The length of the longest row."""


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """The sets of tokens that predictions were sampled from, where not from the complete
    vocabulary."""

    bits: Tensor
    """The distinct large sets, [S, W] uint8: bit i % 8 of byte i // 8 is token i."""
    few: Tensor
    """The distinct small sets, [F, K] int32: the ids of their tokens, filled with `_NO_TOKEN`."""
    sets: Tensor
    """The set of each prediction, [P] int64: the large ones, then the small ones; ALL: the complete
    vocabulary."""

    def to(self, device: torch.device) -> Allowed:
        """Return the same sets on another device."""
        return Allowed(self.bits.to(device), self.few.to(device), self.sets.to(device))

    def barred(self, part: slice, vocab_size: int) -> Tensor:
        """Return a mask, [C, vocab_size], of the tokens that predictions of `part` exclude."""
        sets, num_large = self.sets[part], len(self.bits)
        width = vocab_size + 1  # the last one is no token
        barred = (sets >= 0)[:, None].repeat(1, width)
        if num_large:
            bits = self.bits[sets.clamp(0, num_large - 1)]
            shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
            found = ((bits[..., None] >> shifts) & 1 == 0).flatten(1)
            found = F.pad(found, (0, width - found.shape[1]), value=True)  # a negative number cuts
            barred &= found | (sets >= num_large)[:, None]
        if len(self.few):
            ids = self.few[(sets - num_large).clamp(min=0)].long().clamp(max=vocab_size)
            ids = ids.masked_fill((sets < num_large)[:, None], vocab_size)
            barred.scatter_(1, ids, False)
        return barred[:, :vocab_size]


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """A micro-batch of R rows in S pieces. Attention must be causal within each row and must not
    cross rows. Without branches, pieces are rows."""

    tokens: Tensor
    """The token ids, [1, T] int64."""
    position_ids: Tensor
    """The positions, [1, T] int64; 0 at the start of every row."""
    cu_seqlens: Tensor
    """The boundaries, [S + 1] int32: piece s is tokens[cu_seqlens[s]:cu_seqlens[s + 1]]."""
    lengths: tuple[int, ...]
    """The lengths of the pieces, as plain numbers."""
    branches: Branches | None
    """The ancestors of the pieces; None: no row continues another."""
    num_row_tokens: int
    """The sum of the rows' lengths: T, or more if tokens are shared."""
    positions: Tensor
    """The places of the logits of P predictions, [P] int64, one token before the predicted one."""
    targets: Tensor
    """The predicted tokens, [P] int64."""
    temperatures: Tensor
    """The temperature that each of them was sampled at, [P] float32."""
    index: Tensor
    """The prediction of each trained token, [N] int64, row after row. Rows that share a trained
    token share its prediction, if its temperature and its set of allowed tokens are the same."""
    allowed: Allowed | None = None
    """The restrictions of the predictions; None: there are none."""
    experts: Tensor | None = None
    """The experts that engines chose for the tokens, [T, layers, k] int16, UNKNOWN_EXPERT where
    they are not known; None: nowhere."""

    def to(self, device: torch.device) -> PackedRows:
        """Return the same rows on another device."""
        names = ("tokens", "position_ids", "cu_seqlens", "positions", "targets", "temperatures")
        moved = {name: getattr(self, name).to(device) for name in (*names, "index")}
        moved["experts"] = None if self.experts is None else self.experts.to(device)
        allowed = self.allowed and self.allowed.to(device)
        return replace(self, allowed=allowed, **moved)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The places of the tokens of packed rows."""

    tokens: npt.NDArray[np.int64]
    """The packed tokens, [T]."""
    paths: Sequence[npt.NDArray[np.int64]]
    """The place of each row's tokens."""
    lengths: tuple[int, ...]
    branches: Branches | None

    def packed(
        self,
        positions: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        temperatures: npt.NDArray[np.float32],
        index: npt.NDArray[np.int64],
        allowed: Allowed | None = None,
    ) -> PackedRows:
        """Return the packed rows with these predictions; see `PackedRows`."""
        depths = np.empty(len(self.tokens), np.int64)
        for path in self.paths:
            depths[path] = np.arange(len(path))
        return PackedRows(
            tokens=torch.as_tensor(self.tokens)[None],
            position_ids=torch.as_tensor(depths)[None],
            cu_seqlens=torch.as_tensor(np.cumsum([0, *self.lengths]).astype(np.int32)),
            lengths=self.lengths,
            branches=self.branches,
            num_row_tokens=sum(map(len, self.paths)),
            positions=torch.as_tensor(positions),
            targets=torch.as_tensor(targets),
            temperatures=torch.as_tensor(temperatures),
            index=torch.as_tensor(index),
            allowed=allowed,
        )


def lay_out(rows: Sequence[Tokens], *, least: int | None = LEAST_SHARED) -> Layout:
    """Lay rows of token ids end to end, with a common beginning of at least `least` tokens only
    once; None: each row completely, in the order given."""
    count = len(rows)
    chain = Chain(list(range(count)), [0] * count) if least is None else chained(rows, least=least)
    paths: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)] * count
    before = np.zeros(0, np.int64)
    size, lengths, shared, branching = 0, list[int](), list[int](), list[npt.NDArray[np.int64]]()
    for index, common in zip(*chain, strict=True):
        length = len(rows[index]) - common
        before = np.concatenate((before[:common], np.arange(size, size + length)))
        paths[index] = before
        if length:  # else the row is the beginning of another one
            lengths.append(length)
            shared.append(common)
            branching += [before] if common else []
        size += length
    tokens = np.empty(size, np.int64)
    for row, path in zip(rows, paths, strict=True):
        tokens[path] = row
    branches = None
    if branching:
        paths_of = torch.as_tensor(np.concatenate(branching))
        branches = Branches(tuple(shared), paths_of, max(map(len, rows)))
    return Layout(tokens, paths, tuple(lengths), branches)


def pack_rows(rows: Sequence[Row], *, share: bool = False) -> PackedRows:
    """Pack rows; the predictions are in the order given. With `share`, tokens that rows have in
    common from their beginning on are packed once.

    Raises:
        ValueError: no rows; a trained token without context (the first of a row); a trained
            token whose recorded temperature is not positive and finite.
    """
    if not rows:
        raise ValueError("no rows to pack")
    layout = _laid_out(rows, share=share)
    masks = [row.loss_mask for row in rows]
    if any(mask[:1].any() for mask in masks):
        raise ValueError("the first token of a row is marked as trained; nothing predicts it")
    temperatures = np.concatenate(
        [row.temperatures[mask] for row, mask in zip(rows, masks, strict=True)]
    ).astype(np.float32)
    if not np.all((temperatures > 0) & np.isfinite(temperatures)):
        bad = temperatures[~((temperatures > 0) & np.isfinite(temperatures))][0]
        raise ValueError(f"a trained token has temperature {bad}; greedy tokens do not train")
    pairs = list(zip(layout.paths, masks, strict=True))
    places = np.concatenate([path[mask] for path, mask in pairs])
    before = np.concatenate([path[:-1][mask[1:]] for path, mask in pairs])
    heats, heat = np.unique(temperatures, return_inverse=True)
    bits, few, sets = _allowed(rows, masks)
    num_sets = len(bits) + len(few)
    keys = (places * max(1, len(heats)) + heat) * (num_sets + 1) + sets + 1
    _, first, index = np.unique(keys, return_index=True, return_inverse=True)
    targets = layout.tokens[places[first]]
    allowed = None
    if num_sets:
        allowed = Allowed(*map(torch.as_tensor, (bits, few, sets[first])))
    order = index.astype(np.int64)
    packed = layout.packed(before[first], targets, temperatures[first], order, allowed)
    return replace(packed, experts=_experts(rows, layout))


def _laid_out(rows: Sequence[Row], *, share: bool) -> Layout:
    """Lay rows end to end; with `share`, tokens that they have in common only once."""
    if not share:
        return lay_out([row.tokens for row in rows], least=None)
    layout = lay_out(_keys(rows))
    tokens = np.empty(len(layout.tokens), np.int64)
    for row, path in zip(rows, layout.paths, strict=True):
        tokens[path] = row.tokens
    return replace(layout, tokens=tokens)


def _keys(rows: Sequence[Row]) -> Sequence[Tokens]:
    """Return for each row numbers that are equal where tokens and their experts are: the tokens, if
    no row has experts. What was computed by other experts cannot be shared."""
    if all(row.experts is None for row in rows):
        return [row.tokens for row in rows]
    # A sum with odd random factors, modulo 2**64: other experts have another sum, except
    # with a probability of about 1e-19 for a pair of tokens.
    factors = np.random.default_rng(0).integers(0, 2**63, 1 << 16, np.uint64) * 2 + 1
    marks: list[npt.NDArray[np.uint64]] = []
    for row in rows:
        mark = row.tokens.astype(np.uint64) * factors[0]
        if row.experts is not None:
            ids = row.experts.ids.reshape(len(row), -1).view(np.uint16).astype(np.uint64) + 1
            mark += ids @ factors[1 : 1 + ids.shape[1]]
        marks.append(mark)
    _, keys = np.unique(np.concatenate(marks), return_inverse=True)
    return np.split(keys.astype(np.int32), np.cumsum([len(row) for row in rows])[:-1])


def _experts(rows: Sequence[Row], layout: Layout) -> Tensor | None:
    """Return the experts of packed tokens; see `PackedRows.experts`.

    Raises:
        ValueError: rows have other numbers of layers, or of experts of a token.
    """
    known = [row.experts.ids for row in rows if row.experts is not None]
    if not known:
        return None
    if len({ids.shape[1:] for ids in known}) > 1:
        raise ValueError(f"rows with experts of the shapes {[ids.shape for ids in known]}")
    experts = np.full((len(layout.tokens), *known[0].shape[1:]), UNKNOWN_EXPERT, np.int16)
    for row, path in zip(rows, layout.paths, strict=True):
        if row.experts is not None:
            experts[path] = row.experts.ids
    return torch.as_tensor(experts)


def _allowed(
    rows: Sequence[Row], masks: Sequence[npt.NDArray[np.bool_]]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return the distinct sets of allowed tokens, [S, W] and [F, K], and the set of each trained
    token, [N]; see `Allowed`.

    Raises:
        ValueError: a trained token had no alternative, or a set is damaged.
    """
    whole = joined(
        [
            (int(mask.sum()), row.choices and Choices(row.choices.index[mask], row.choices.sets))
            for row, mask in zip(rows, masks, strict=True)
        ]
    )
    if whole is None:
        count = sum(int(mask.sum()) for mask in masks)
        return np.zeros((0, 0), np.uint8), np.zeros((0, 0), np.int32), np.full(count, ALL)
    if (whole.index == FORCED).any():
        raise ValueError("a token that had no alternative is marked as trained")
    used, sets = np.unique(whole.index[whole.index >= 0], return_inverse=True)
    places: list[int] = used.tolist()
    ids = [few_ids(whole.sets[place]) for place in places]
    pairs = zip(places, ids, strict=True)
    large = [unpacked_set(whole.sets[place]) for place, few in pairs if few is None]
    small = [few for few in ids if few is not None]
    # The large sets come first, each kind in its order.
    order = np.argsort(np.argsort([few is not None for few in ids], kind="stable"))
    index = np.full(len(whole.index), ALL, np.int64)
    index[whole.index >= 0] = order[sets]
    return _table(large, 0, np.uint8), _table(small, _NO_TOKEN, np.int32), index


def _table(
    rows: Sequence[npt.NDArray[np.generic]], fill: int, dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Return arrays of different lengths as the rows of one, filled up."""
    found = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype)
    for place, row in zip(found, rows, strict=True):
        place[: len(row)] = row
    return found


def micro_batches(
    rows: Sequence[Row], budget: int, *, share: bool, packs: bool = True, least: int = 1
) -> Iterator[tuple[list[int], PackedRows]]:
    """Yield the indices of the rows of each micro-batch of at most `budget` tokens, and these rows
    packed; `least` micro-batches, if they can be smaller then. With `share`, the tokens that rows
    have in common count once (see `fill_shared`). Without `packs`, each holds one row: the model
    does not compute several in one pass.

    Raises:
        ValueError: a row is longer than the budget, or holds tokens that cannot be trained.
    """
    lengths = [len(row) for row in rows]
    if share:
        bins = fill_shared(lengths, chained(_keys(rows)), budget, least=least)
    elif packs:
        bins = fill_bins(lengths, budget, least=least)
    else:
        check_fit(lengths, budget)
        bins = [[index] for index in range(len(rows))]
    for members in bins:
        yield members, pack_rows([rows[i] for i in members], share=share)
