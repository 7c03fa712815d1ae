"""The causes of failing tokens: the log-probs of the worst ones are recomputed under each possible
cause, such as another version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from agentgym_rl.core import BoolArray, FloatArray, Row, WeightsError
from agentgym_rl.storage import EpisodeReader

from .tokens import Index, Tokens, UpdatePosition
from .verdict import Evidence, Rule, distances

if TYPE_CHECKING:
    from .recompute import Recomputer

OnProgress = Callable[[int], None]
"""A callback that receives the number of tokens recomputed since its previous call."""

_ROWS_AT_ONCE = 512


class Recompute:
    """The tokens of a run, and a model that holds one version of the policy at a time."""

    def __init__(
        self,
        tokens: Tokens,
        reader: EpisodeReader,
        model: Recomputer,
        on_progress: OnProgress,
        *,
        keeps_kv: bool,
    ):
        self._keeps_kv = keeps_kv
        self.tokens, self._reader, self._model = tokens, reader, model
        self._on_progress = on_progress

    def load(self, version: int) -> None:
        """Load this version for the computations that follow.

        Raises:
            WeightsError: its file is missing, damaged, or has other contents than expected.
        """
        self._model.load(version)

    def logprobs(
        self, chosen: Index, *, temperature: float | None = None, plain: bool = False
    ) -> FloatArray:
        """Return the log-probs of the chosen tokens (ascending) under the version loaded last.

        With `plain`, each row is computed in a forward pass of its own."""
        rows = self.tokens.rows(
            chosen, self._reader, temperature=temperature, keeps_kv=self._keeps_kv
        )
        parts = [part for some in _chunks(rows) for part in self._some(some, plain)]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def rounded(self, chosen: Index) -> FloatArray:
        """Return the log-probs of the chosen tokens under the version loaded last, by a forward
        that multiplies in bfloat16."""
        with self._model.rounded():
            return self.logprobs(chosen)

    def relabelled(
        self,
        chosen: Index,
        *,
        shift: int = 0,
        temperature: float | None = None,
        plain: bool = False,
    ) -> FloatArray:
        """Return the log-probs of the chosen tokens under the version `shift` later than recorded;
        NaN where there is no such version."""
        result = np.full(len(chosen), np.nan, np.float32)
        own = self.tokens.version[chosen]
        for version in np.unique(own).tolist():
            try:
                self.load(version + shift)
            except WeightsError:
                continue
            result[own == version] = self.logprobs(
                chosen[own == version], temperature=temperature, plain=plain
            )
        return result

    def _some(self, rows: list[Row], plain: bool) -> list[FloatArray]:
        parts = self._model.logprobs(rows, plain=plain)
        self._on_progress(sum(len(part) for part in parts))
        return parts


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        yield some


_MOST = 256
"""The number of failing tokens that are recomputed, the worst first."""


def diagnose(recompute: Recompute, evidence: Evidence, rule: Rule, broken: Index) -> dict[str, Any]:
    """Count how many of the worst failing tokens each possible cause explains; add remedies."""
    chosen = np.sort(broken[:_MOST])
    tokens = recompute.tokens

    def explained(**changes: Any) -> BoolArray:
        found = recompute.relabelled(chosen, **changes)
        gaps = distances(tokens.recorded[chosen], found)
        # Less than half the gap: otherwise a token just over the limit would fit every cause.
        return (gaps <= rule.token_limit) & (gaps < evidence.gaps[chosen] / 2)

    plain = explained(plain=True)
    before, after = explained(shift=-1) & ~plain, explained(shift=1) & ~plain
    raw = explained(temperature=1.0) & (tokens.temperature[chosen] != 1) & ~plain
    left = ~(plain | before | after | raw)
    after_update = left & (tokens.place[chosen] == UpdatePosition.AFTER_UPDATE)
    counts = {
        "tokens": len(chosen),
        "unpacked": int(plain.sum()),
        "version_before": int(before.sum()),
        "version_after": int(after.sum()),
        "temperature_1": int(raw.sum()),
        "unexplained": int(left.sum()),
        "unexplained_after_update": int(after_update.sum()),
    }
    return {**counts, "hints": _hints(counts, rule)}


def _hints(counts: dict[str, int], rule: Rule) -> list[str]:
    def of(name: str) -> str:
        return f"{counts[name]} of the {counts['tokens']} worst tokens"

    hints: list[str] = []
    if counts["unpacked"]:
        hints.append(
            f"wrong packing: {of('unpacked')} agree with a plain forward of their row alone, so "
            "the engine is right, and the trainer is not: it packs rows of this model wrongly, and "
            "what it learned from them is wrong. Train another model, or make "
            "trainer.max_tokens_per_microbatch and engine.max_model_len smaller"
        )
    if counts["version_before"]:
        hints.append(
            f"off by one version: {of('version_before')} agree with the version BEFORE the "
            "recorded one (v-1): the engine's version label changes before its weights do"
        )
    if counts["version_after"]:
        hints.append(
            f"off by one version: {of('version_after')} agree with the version AFTER the "
            "recorded one (v+1): the engine's weights change before its version label does"
        )
    if counts["temperature_1"]:
        hints.append(
            f"raw log-probs: {of('temperature_1')} agree at temperature 1: the engine reports "
            "log-probs before temperature; start vLLM with --logprobs-mode processed_logprobs"
        )
    return hints + _unexplained(counts, rule)


def _unexplained(counts: dict[str, int], rule: Rule) -> list[str]:
    after, left = counts["unexplained_after_update"], counts["unexplained"]
    if not left:
        return []
    if after > left / 2:
        but = ", but recorded as admitted after it" if rule.interrupt == "keep" else ""
        return [
            f"old KV: {after} of the {counts['tokens']} worst tokens follow an update within their "
            "turn and fit no neighbouring version: the engine seems to have kept KV of older "
            f"weights (rollout.interrupt is {rule.interrupt!r}{but})"
        ]
    return [
        f"{left} of the {counts['tokens']} worst tokens fit neither a neighbouring version nor "
        "temperature 1: look for prompts on KV of older weights (a prefix cache shared between "
        "versions), another model or dtype in the engine, top_p or top_k"
    ]
