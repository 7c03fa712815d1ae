"""The comparison of rows with the engine's own record, token by token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from agentgym_rl.core import NOT_SAMPLED, Row
from agentgym_rl.core.token_records import FORCED

from .views import View

FIELDS = ("tokens", "logprobs", "versions", "mask", "turns", "temperatures", "times")


def compare(
    rows: Sequence[Row],
    turn_names: Sequence[str],
    views: Mapping[str, View],
    *,
    delivered: Collection[str],
    temperature: float,
    trains: bool = True,
) -> Counter[str]:
    """Count the differences of a session's rows from the engine's record; `tokens` and similar keys
    count tokens.

    Args:
        turn_names: The request of each turn, as the gateway has it; it is wrong if the input and
            output of that request are not those of the row.
        views: The input and output of the engine, by request.
        delivered: The requests whose complete replies the client got. Each must train in exactly
            one row (`not_once`), any other in at most one (`unseen`): its bytes were sent before
            the client hung up, or a later turn continues it.
    """
    wrong: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    for row in rows:
        path = [int(turn) for turn in dict.fromkeys(row.turn_ids[row.turn_ids >= 0].tolist())]
        last = views[turn_names[path[-1]]]
        wrong["tokens"] += _differ(row.tokens, [*last.prompt, *last.ids])
        expected = _Expected(len(row))
        for turn in path:
            name = turn_names[turn]
            view = views[name]
            here = slice(len(view.prompt), len(view.prompt) + len(view.ids))
            wrong["tokens"] += _differ(row.tokens[: here.stop], [*view.prompt, *view.ids])
            free = ~_forced(row)[here]
            mask = set(row.loss_mask[here][free].tolist()) or {trains}
            trained[name] += mask == {True}
            wrong["mask"] += len(mask) != 1
            taken = free & (mask == {True})
            expected.take(view, here, turn, temperature=temperature, trained=taken)
        for field, found, wanted in expected.beside(row):
            wrong[field] += _differ(found, wanted)
    if trains:
        wrong["not_once"] += sum(trained[name] != 1 for name in delivered)
        wrong["unseen"] += sum(
            count > 1 for name, count in trained.items() if name not in delivered
        )
    else:
        wrong["not_once"] += sum(trained.values())
    return +wrong


class _Expected:
    """The arrays of a row, made from the engine's record."""

    def __init__(self, length: int) -> None:
        self.mask = np.zeros(length, bool)
        self.logprobs = np.zeros(length, np.float32)
        self.versions = np.full(length, NOT_SAMPLED, np.int32)
        self.turns = np.full(length, -1, np.int32)
        self.temperatures = np.zeros(length, np.float32)
        self.times: np.ndarray | None = np.zeros(length, np.float64)

    def take(
        self, view: View, here: slice, turn: int, *, temperature: float, trained: np.ndarray
    ) -> None:
        if here.stop > len(self.mask):
            return  # counted as tokens already
        self.mask[here] = trained
        self.logprobs[here] = np.float32(view.logprobs)
        self.versions[here] = view.versions
        self.turns[here] = turn
        self.temperatures[here] = temperature
        if view.times_s is None:
            self.times = None
        elif self.times is not None:
            self.times[here] = view.times_s

    def beside(self, row: Row) -> list[tuple[str, np.ndarray, np.ndarray]]:
        pairs = [
            ("mask", row.loss_mask, self.mask),
            ("logprobs", row.behavior_logprobs, self.logprobs),
            ("versions", row.policy_versions, self.versions),
            ("turns", row.turn_ids, self.turns),
            ("temperatures", row.temperatures, self.temperatures),
        ]
        if self.times is not None:
            pairs.append(("times", row.times_s, self.times))
        return pairs


def _forced(row: Row) -> np.ndarray:
    """Return [T] bool, True for tokens without an alternative, which do not train."""
    if row.choices is None:
        return np.zeros(len(row), bool)
    return np.asarray(row.choices.index == FORCED)


def _differ(found: np.ndarray, wanted: Sequence[int] | np.ndarray) -> int:
    """Return the number of positions that differ, or that only one has."""
    wanted = np.asarray(wanted)
    both = min(len(found), len(wanted))
    return int((found[:both] != wanted[:both]).sum()) + abs(len(found) - len(wanted))
