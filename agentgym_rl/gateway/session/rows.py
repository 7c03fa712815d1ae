"""The export of training rows from a token tree: each path once, each token trained once."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentgym_rl.core.engine import UNKNOWN_VERSION
from agentgym_rl.core.trajectory import NOT_SAMPLED, Row

from .tree import Root, Sample, Sampled, Tree

_NO_LOGPROB = -9998.0  # engines write -9999 for missing, NaN and -inf log-probs


def export_rows(
    tree: Tree, roots: Sequence[Root], *, train: bool, train_side_lineages: bool = True
) -> list[Row]:
    """Return one row per path of the tree, in the order in which their last turns were sampled.

    A sampled turn shared by several paths trains in the longest one; the others carry it as
    context. A conversation that was only continued is one row; replies that never reached their
    client are on no path. A row's lineage is the index of its root in `roots`. Nothing trains with
    `train` False, in greedy and constrained turns, or for tokens without a real log-prob or with an
    unknown version. Without `train_side_lineages`, only the first lineage trains.
    """
    paths = [_path(node) for node in tree.leaves()]
    lineage_of = {id(root): number for number, root in enumerate(roots)}
    owner: dict[int, int] = {}
    for index in sorted(range(len(paths)), key=lambda i: -_length(paths[i])):
        for node in paths[index]:
            owner.setdefault(node.turn, index)
    rows: list[Row] = []
    for index, path in enumerate(paths):
        lineage = lineage_of[id(path[0].context.root)]
        trains = train and (train_side_lineages or lineage == 0)
        own = {node.turn for node in path if trains and owner[node.turn] == index}
        rows.append(_row(path, own, lineage))
    return rows


def _path(node: Sampled | None) -> list[Sampled]:
    nodes: list[Sampled] = []
    while node is not None:
        nodes.append(node)
        node = node.context.base
    return nodes[::-1]


def _length(path: list[Sampled]) -> int:
    return sum(len(node.context.ids) + len(node.ids) for node in path)


def _row(path: list[Sampled], trained: Set[int], lineage: int) -> Row:
    tokens: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    admitted: list[int] = []
    times_s: list[float] = []
    for node in path:
        fed, sample = len(node.context.ids), node.sample
        tokens += [*node.context.ids, *sample.ids]
        logprobs += [0.0] * fed + sample.logprobs
        versions += [NOT_SAMPLED] * fed + sample.versions
        admitted += [NOT_SAMPLED] * fed + sample.admitted
        times_s += [0.0] * fed + sample.times_s
    lengths = [length for node in path for length in (len(node.context.ids), len(node.ids))]
    temperatures = [node.sample.temperature for node in path]
    trains = [_is_policy(node.sample) and node.turn in trained for node in path]
    reported = np.fromiter(logprobs, np.float64)
    real = _is_real(reported)
    policy_versions = np.fromiter(versions, np.int32)
    return Row(
        tokens=np.fromiter(tokens, np.int32),
        loss_mask=_spread(trains, False, lengths) & real & (policy_versions != UNKNOWN_VERSION),
        # a masked token's log-prob must not reach a ratio as inf or NaN
        behavior_logprobs=np.where(real, reported, 0.0).astype(np.float32),
        policy_versions=policy_versions,
        admitted_versions=np.fromiter(admitted, np.int32),
        temperatures=_spread(temperatures, 0.0, lengths).astype(np.float32),
        turn_ids=_spread([node.turn for node in path], -1, lengths).astype(np.int32),
        times_s=np.fromiter(times_s, np.float64),
        lineage=lineage,
    )


def _spread(sampled: Sequence[float], fed: float, lengths: Sequence[int]) -> NDArray[Any]:
    """Return, per token, the turn's value if sampled, and `fed` for the turn's input tokens."""
    return np.repeat([value for one in sampled for value in (fed, one)], lengths)


def _is_policy(sample: Sample) -> bool:
    """Return whether the turn was drawn from the policy. The log-probs of a constrained turn belong
    to the policy restricted by the grammar at each token. No ratio with the policy can be computed
    from them, because the trainer computes the policy without the grammar."""
    return sample.temperature > 0 and not sample.constrained


def _is_real(logprobs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return, per token, whether its log-prob is real, not an engine's mark for a missing one."""
    return np.isfinite(logprobs) & (logprobs > _NO_LOGPROB)
