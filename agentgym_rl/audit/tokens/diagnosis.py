"""Why tokens fail: the worst of them are recomputed under what else they may have been."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentgym_rl.core.trajectory import BoolArray

from .recompute import Recompute
from .tokens import Index, Place
from .verdict import Evidence, Rule, distances

_MOST = 256
"""Failing tokens that are tried, the worst first."""


def diagnose(recompute: Recompute, evidence: Evidence, rule: Rule, broken: Index) -> dict[str, Any]:
    """How many of the worst failing tokens each possible cause explains, and what to do."""
    chosen = np.sort(broken[:_MOST])
    tokens = recompute.tokens

    def explained(**changes: Any) -> BoolArray:
        found = recompute.relabelled(chosen, **changes)
        gaps = distances(tokens.recorded[chosen], found)
        # Half as far at most: so that a token just over the limit does not fit everything.
        return (gaps <= rule.token_limit) & (gaps < evidence.gaps[chosen] / 2)

    plain = explained(plain=True)
    before, after = explained(shift=-1) & ~plain, explained(shift=1) & ~plain
    raw = explained(temperature=1.0) & (tokens.temperature[chosen] != 1) & ~plain
    left = ~(plain | before | after | raw)
    after_update = left & (tokens.place[chosen] == Place.AFTER_UPDATE)
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
