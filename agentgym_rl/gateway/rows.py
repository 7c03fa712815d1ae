"""Training rows out of a token tree: each path once, each sampled token trained once."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

import numpy as np

from agentgym_rl.engine import UNKNOWN_VERSION
from agentgym_rl.trajectory import NOT_SAMPLED, Row

from .tree import Root, Sample, Sampled, Tree

_NO_LOGPROB = -9998.0  # engines write -9999 for missing, NaN and -inf log-probs


def export_rows(
    tree: Tree, roots: Sequence[Root], *, train: bool, train_side_lineages: bool = True
) -> list[Row]:
    """One row per path of the tree, in the order their last turns were sampled.

    A sampled turn shared by several paths trains in the longest one; the others carry it as
    context. A conversation that was only ever continued is one row; replies that never reached
    their client are on no path. A row's lineage is the place of its root in `roots`. With `train`
    False, and on greedy and constrained turns and tokens without a real log-prob or with an
    unknown version, nothing trains; nor do lineages but the first without `train_side_lineages`.
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
    mask: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    admitted: list[int] = []
    temperatures: list[float] = []
    turns: list[int] = []
    times_s: list[float] = []
    for node in path:
        fed, sample = len(node.context.ids), node.sample
        sampled, train = len(sample.ids), _is_policy(sample) and node.turn in trained
        tokens += node.context.ids + sample.ids
        mask += [False] * fed + [train and ok for ok in _trainable(sample)]
        # a masked token's log-prob must not reach a ratio as inf or NaN
        logprobs += [0.0] * fed + [lp if _is_real(lp) else 0.0 for lp in sample.logprobs]
        versions += [NOT_SAMPLED] * fed + sample.versions
        admitted += [NOT_SAMPLED] * fed + sample.admitted
        temperatures += [0.0] * fed + [sample.temperature] * sampled
        turns += [-1] * fed + [node.turn] * sampled
        times_s += [0.0] * fed + sample.times_s
    return Row(
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mask, np.bool_),
        behavior_logprobs=np.array(logprobs, np.float32),
        policy_versions=np.array(versions, np.int32),
        admitted_versions=np.array(admitted, np.int32),
        temperatures=np.array(temperatures, np.float32),
        turn_ids=np.array(turns, np.int32),
        times_s=np.array(times_s, np.float64),
        lineage=lineage,
    )


def _is_policy(sample: Sample) -> bool:
    """Whether the turn was drawn from the policy. The log-probs of a constrained one are of the
    policy cut down to what a grammar allowed at each token: no ratio with the policy can be made
    of them, which the trainer computes without the grammar."""
    return sample.temperature > 0 and not sample.constrained


def _trainable(sample: Sample) -> list[bool]:
    """Per token: a policy that can be named gave it a log-prob that is one."""
    pairs = zip(sample.logprobs, sample.versions, strict=True)
    return [_is_real(logprob) and version != UNKNOWN_VERSION for logprob, version in pairs]


def _is_real(logprob: float) -> bool:
    return math.isfinite(logprob) and logprob > _NO_LOGPROB
