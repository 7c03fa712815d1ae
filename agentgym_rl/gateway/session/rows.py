"""The training data of a session: rows of its token tree, and rewards of turns and lineages.

Each path of the tree is one row, and each token is trained once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym_rl.core import NOT_SAMPLED, UNKNOWN_VERSION, Credit, Row, added_reward
from agentgym_rl.core.token_records import FORCED, experts_of, joined

from .nodes import Root, Sample, Sampled
from .tree import Tree

_NO_LOGPROB = -9998.0  # engines write -9999 for missing, NaN and -inf log-probs


def export_rows(
    tree: Tree, roots: Sequence[Root], *, train: bool, train_side_lineages: bool = True
) -> list[Row]:
    """Return one row per path of the tree, in the order in which their last turns were sampled.

    A sampled turn shared by several paths trains in the longest one; the others carry it as
    context. A conversation that was only continued is one row; replies that never reached their
    client are on no path. A row's lineage is the index of its root in `roots`; its parent is the
    row of the turn before its own turns.

    Nothing trains if `train` is False, in greedy turns, and in constrained turns whose allowed
    tokens are not known; nor do tokens without a real log-prob, a known version or an alternative.
    Without `train_side_lineages`, only the first lineage trains. A lineage that a client has named
    as untrained never trains.
    """
    counted, extended = _on_paths(tree)
    ends = counted - extended
    paths = [node.chain() for node in tree.turns if node.turn in ends]
    lineage_of = {id(root): number for number, root in enumerate(roots)}
    owner: dict[int, int] = {}
    for index in sorted(range(len(paths)), key=lambda i: -len(paths[i][-1].path)):
        for node in paths[index]:
            owner.setdefault(node.turn, index)
    rows: list[Row] = []
    for index, path in enumerate(paths):
        lineage = lineage_of[id(path[0].context.root)]
        trains = train and roots[lineage].trains and (train_side_lineages or lineage == 0)
        own = [node for node in path if owner[node.turn] == index]
        before = own[0].parent if own else path[-1]
        parent = -1 if before is None else owner.get(before.turn, -1)
        trained = {node.turn for node in own if trains}
        rows.append(replace(_row(path, trained), lineage=lineage, parent=parent))
    return rows


def num_lost(tree: Tree) -> int:
    """Return the number of turns that are on no path."""
    return len(tree.turns) - len(_on_paths(tree)[0])


def _on_paths(tree: Tree) -> tuple[set[int], set[int]]:
    """Return the turns that are on a path, and those of them that another turn follows.

    A reply that reached no client and that no turn continues is not part of the episode.
    """
    counted: set[int] = set()
    extended: set[int] = set()
    for node in reversed(tree.turns):  # a turn comes before those that follow it
        if node.delivered or node.turn in counted:
            counted.add(node.turn)
            if node.parent is not None:  # a client that continues a reply has seen it
                counted.add(node.parent.turn)
            if node.context.base is not None:
                extended.add(node.context.base.turn)
    return counted, extended


def _row(path: list[Sampled], trained: Set[int]) -> Row:
    samples = [node.sample for node in path]
    parts = [ids for node in path for ids in (node.context.ids, node.ids)]
    lengths = list(map(len, parts))
    tokens = np.fromiter(chain.from_iterable(parts), np.int32)
    sampled = _spread([True] * len(path), False, lengths)

    def recorded(lists: Iterable[Sequence[float]], fed: float, kind: type) -> NDArray[Any]:
        values = np.full(len(tokens), fed, kind)
        values[sampled] = np.fromiter(chain.from_iterable(lists), kind)
        return values

    trains = [_is_policy(node.sample) and node.turn in trained for node in path]
    reported = recorded((sample.logprobs for sample in samples), 0.0, np.float64)
    real = _is_real(reported)
    policy_versions = recorded((s.versions for s in samples), NOT_SAMPLED, np.int32)
    loss_mask = _spread(trains, False, lengths) & real & (policy_versions != UNKNOWN_VERSION)
    drawn_from = [choices for sample in samples for choices in (None, sample.choices)]
    choices = joined(list(zip(lengths, drawn_from, strict=True)))
    if choices is not None:
        loss_mask &= choices.index != FORCED
    return Row(
        tokens=tokens,
        loss_mask=loss_mask,
        # a masked token's log-prob must not reach a ratio as inf or NaN
        behavior_logprobs=np.where(real, reported, 0.0).astype(np.float32),
        policy_versions=policy_versions,
        admitted_versions=recorded((s.admitted for s in samples), NOT_SAMPLED, np.int32),
        temperatures=_spread([s.temperature for s in samples], 0.0, lengths).astype(np.float32),
        turn_ids=_spread([node.turn for node in path], -1, lengths).astype(np.int32),
        times_s=recorded((sample.times_s for sample in samples), 0.0, np.float64),
        choices=choices,
        experts=experts_of((report for s in samples for report in s.experts), len(tokens)),
    )


def _spread(sampled: Sequence[float], fed: float, lengths: Sequence[int]) -> NDArray[Any]:
    """Return, per token, the turn's value if sampled, and `fed` for the turn's input tokens."""
    return np.repeat([value for one in sampled for value in (fed, one)], lengths)


def _is_policy(sample: Sample) -> bool:
    """Return whether the turn was drawn from a distribution that the trainer can compute. For a
    turn under a grammar, it needs the tokens that the grammar allowed."""
    return sample.temperature > 0 and (not sample.constrained or sample.choices is not None)


def _is_real(logprobs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return, per token, whether its log-prob is real, not an engine's mark for a missing one."""
    return np.isfinite(logprobs) & (logprobs > _NO_LOGPROB)


class Credits:
    """The rewards paid so far. Lineages are kept as roots, whose numbers may still change."""

    def __init__(self) -> None:
        self._episode = 0.0
        self._turns: defaultdict[int, float] = defaultdict(float)
        self._roots: defaultdict[int, float] = defaultdict(float)

    def pay(
        self,
        value: float,
        *,
        turn: int | None,
        lineage: int | None,
        turns: Sequence[Sampled],
        roots: Sequence[Root],
    ) -> None:
        """Add a reward to one of `turns`, to one of `roots`, or to the episode.

        Raises:
            ValueError: the reward is invalid (`added_reward`), or has no target or two.
        """
        if turn is not None and lineage is not None:
            raise ValueError("a reward is of a turn or of a lineage, not of both")
        if turn is not None:
            if not 0 <= turn < len(turns):
                raise ValueError(f"turn {turn}: the session has answered {len(turns)} turns")
            self._turns[turn] = added_reward(self._turns[turn], value)
        elif lineage is not None:
            if not 0 <= lineage < len(roots):
                raise ValueError(f"lineage {lineage}: the session has {len(roots)} lineages")
            root = id(roots[lineage])
            self._roots[root] = added_reward(self._roots[root], value)
        else:
            self._episode = added_reward(self._episode, value)

    def record(self, turns: Sequence[Sampled], roots: Sequence[Root]) -> Credit:
        """Return the credit record for the trajectory of these turns and lineages."""
        lineage_of = {id(root): number for number, root in enumerate(roots)}
        paid = bool(self._turns or self._roots)
        return Credit(
            self._episode,
            parents=[node.parent.turn if node.parent else -1 for node in turns],
            lineages=[lineage_of[id(node.context.root)] for node in turns],
            turn_rewards=[self._turns.get(node.turn, 0.0) for node in turns] if paid else (),
            lineage_rewards=[self._roots.get(id(root), 0.0) for root in roots] if paid else (),
        )
