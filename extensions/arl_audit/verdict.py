"""The rule of the audit: which tokens count, their allowed deviation, and the result; numbers are
|Δ log-prob| in nats.

Legend: [N] the trained tokens of `Tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agentgym_rl.core import BoolArray, FloatArray, Interrupt

from .tokens import Index, Tokens, UpdatePosition

Gaps = npt.NDArray[np.float64]

THRESHOLDS: Mapping[str, float] = {"float32": 1e-4, "bfloat16": 1e-2}
"""The allowed |Δ log-prob| by dtype of the engine. For float32 it limits every token: the embedded
engine is within 1e-5 of the trainer. For bfloat16 it limits the mean of every version, since single
tokens differ by 0.1 between two correct forwards; their mean, by 1e-3 (both measured with the
bundled model). A deeper model rounds more often: see `Rule.allowing`."""

_ROUNDINGS = 4
"""The mean |Δ| allowed in bfloat16, in units of what rounding the factors of matrix products does
to the same tokens: deep models round more often. With SmolLM2-135M the embedded engine on a CPU is
1.0 units from float32 (0.014 nats), and transformers in bfloat16 throughout is 2.5."""

_ENOUGH_TOKENS = 100
"""The number of tokens from which the mean of a version is judged separately."""

_OUTLIER = 10
"""The number of thresholds beyond which a bfloat16 token needs an explanation."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The guarantees of the run's configuration, and the allowed deviation of a token."""

    interrupt: Interrupt
    dtype: Literal["float32", "bfloat16"]
    threshold: float

    def allowing(self, rounding: float | None) -> Rule:
        """Return the rule with room for `rounding`, the mean |Δ| between the run's own tokens in
        float32 and in the engine's dtype. None: the same rule."""
        if rounding is None or not math.isfinite(rounding):
            return self
        return replace(self, threshold=max(self.threshold, _ROUNDINGS * rounding))

    @property
    def by_token(self) -> bool:
        """Return whether every single token is judged, instead of the mean of every version."""
        return self.dtype == "float32"

    @property
    def token_limit(self) -> float:
        return self.threshold if self.by_token else _OUTLIER * self.threshold

    def old_kv(self, tokens: Tokens) -> BoolArray:
        """Return [N] whether the token may depend on KV of weights older than its version.

        This happens only if the interrupt mode keeps KV, and only after an update within the
        request: the request was admitted under an older version. An unknown admission is False, so
        that the token is judged.
        """
        after = (tokens.admitted >= 0) & (tokens.version > tokens.admitted)
        return after & (self.interrupt == "keep")


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """The recomputed tokens; all arrays are [N], `problems` is not."""

    tokens: Tokens
    covered: BoolArray
    """The tokens that were recomputed at all."""
    recomputed: FloatArray
    gaps: Gaps
    """The |recorded − recomputed|; infinite where either is not finite; NaN where not covered."""
    old_kv: BoolArray
    problems: Mapping[int, str]
    """The reason for each version that could not be recomputed."""

    @property
    def judged(self) -> BoolArray:
        """Return the tokens that count against the threshold.

        A log-prob that is not finite always counts.
        """
        return self.covered & ~(self.old_kv & np.isfinite(self.gaps))

    @property
    def coverage(self) -> float:
        return float(self.covered.mean()) if len(self.covered) else 0.0


def distances(recorded: npt.NDArray[Any], recomputed: npt.NDArray[Any]) -> Gaps:
    """Return |recorded − recomputed|, infinite where one of them is not finite."""
    apart = np.abs(recorded.astype(np.float64) - recomputed.astype(np.float64))
    return np.where(np.isfinite(apart), apart, np.inf)


def summary(gaps: Gaps) -> dict[str, Any]:
    """Return tokens, max and mean; max and mean are None without tokens."""
    if not len(gaps):
        return {"tokens": 0, "max": None, "mean": None}
    return {"tokens": len(gaps), "max": float(gaps.max()), "mean": float(gaps.mean())}


def by_version(evidence: Evidence) -> list[dict[str, Any]]:
    """Return for each version its trained tokens, the share recomputed, and their agreement."""
    found: list[dict[str, Any]] = []
    for version in np.unique(evidence.tokens.version).tolist():
        own = evidence.tokens.version == version
        found.append(
            {
                "version": version,
                **summary(evidence.gaps[own & evidence.judged]),
                "tokens": int(own.sum()),
                "coverage": float(evidence.covered[own].mean()),
                "mixed_kv_tokens": int((own & evidence.covered & ~evidence.judged).sum()),
                "problem": evidence.problems.get(version, ""),
            }
        )
    return found


def by_place(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Summarize all recomputed tokens by their place relative to updates."""
    place = evidence.tokens.place
    return {
        p.name.lower(): summary(evidence.gaps[evidence.covered & (place == p)])
        for p in UpdatePosition
    }


def failing(evidence: Evidence, rule: Rule) -> Index:
    """Return the tokens that break the rule, or make the means break it; the worst first."""
    judged, gaps = evidence.judged, evidence.gaps
    if rule.by_token:
        chosen = judged & (gaps > rule.threshold)
    else:
        chosen = judged & np.isin(evidence.tokens.version, _bad_means(evidence, rule))
        outliers = chosen & (gaps > rule.token_limit)
        chosen = outliers if outliers.any() else chosen
    index = np.flatnonzero(chosen)
    return index[np.argsort(-gaps[index], kind="stable")]


def failures(evidence: Evidence, rule: Rule, broken: Index) -> list[str]:
    """Return one sentence for each check that failed; none if the audit passed."""
    found = [f"coverage: {problem}" for problem in _uncovered(evidence)]
    judged = evidence.gaps[evidence.judged]
    if not len(judged):
        found.append("coverage: not one token could be judged")
    elif rule.by_token and len(broken):
        found.append(
            f"agreement: {len(broken)} of {len(judged)} tokens differ by more than "
            f"{rule.threshold:g} from the trainer's forward of their version "
            f"(max {judged.max():.2g})"
        )
    elif not rule.by_token and (versions := _bad_means(evidence, rule)):
        found.append(
            f"agreement: in version{'s' * (len(versions) > 1)} {_listed(versions)} tokens differ "
            f"by more than {rule.threshold:g} on average from the trainer's forward"
        )
    return found


def _bad_means(evidence: Evidence, rule: Rule) -> list[int]:
    """Return the versions whose mean is too high; all versions if only the run's mean is."""
    judged = evidence.judged
    versions = np.unique(evidence.tokens.version[judged]).tolist()
    means = {v: evidence.gaps[judged & (evidence.tokens.version == v)] for v in versions}
    bad = [
        v for v, g in means.items() if len(g) >= _ENOUGH_TOKENS and not g.mean() <= rule.threshold
    ]
    if not bad and judged.any() and not evidence.gaps[judged].mean() <= rule.threshold:
        return versions
    return bad


def _uncovered(evidence: Evidence) -> list[str]:
    versions, counts = np.unique(evidence.tokens.version[~evidence.covered], return_counts=True)
    return [
        f"{count} trained tokens of version {version} were not recomputed: "
        f"{evidence.problems[version]}"
        for version, count in zip(versions.tolist(), counts.tolist(), strict=True)
    ]


def _listed(versions: list[int], most: int = 8) -> str:
    text = ", ".join(map(str, versions[:most]))
    return text if len(versions) <= most else f"{text} and {len(versions) - most} more"
