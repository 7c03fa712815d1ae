"""Which tokens count, what is allowed, and what was found; numbers are |Δ log-prob| in nats.

Legend: [N] the trained tokens of `Tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agentgym_rl.core.engine import Interrupt
from agentgym_rl.core.trajectory import BoolArray, FloatArray

from .tokens import Index, Place, Tokens

Gaps = npt.NDArray[np.float64]

THRESHOLDS: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 1e-2}
"""Allowed |Δ log-prob|, by dtype of the engine. In float32 of every token: the embedded engine is
within 1e-5 of the trainer. In bfloat16 of the mean of every version, since single tokens differ
by 0.1 between two correct forwards; their mean, by 1e-3 (both measured with the bundled model)."""

_ENOUGH_TOKENS = 100
"""Of a version, for its mean to be judged by itself."""

_OUTLIER = 10
"""In bfloat16 a token this many thresholds off is one to explain."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the run's configuration promises, and how far off a token may be."""

    interrupt: Interrupt
    dtype: Literal["float32", "bfloat16"]
    threshold: float

    @property
    def by_token(self) -> bool:
        """Whether every single token is judged, or the mean of every version."""
        return self.dtype == "float32"

    @property
    def token_limit(self) -> float:
        return self.threshold if self.by_token else _OUTLIER * self.threshold

    def old_kv(self, tokens: Tokens) -> BoolArray:
        """[N] Whether the token may stand on KV of weights older than its version's.

        Only where the interrupt mode keeps KV, and only after an update within its request: the
        request was admitted under an older version. One whose admission is unknown counts.
        """
        after = (tokens.admitted >= 0) & (tokens.version > tokens.admitted)
        return after & (self.interrupt == "keep")


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What was recomputed; all [N] but `problems`."""

    tokens: Tokens
    covered: BoolArray
    """Recomputed at all."""
    recomputed: FloatArray
    gaps: Gaps
    """|recorded − recomputed|; infinite where either is not finite; NaN where not covered."""
    old_kv: BoolArray
    problems: Mapping[int, str]
    """Why a version could not be recomputed."""

    @property
    def judged(self) -> BoolArray:
        """Counts against the threshold. A log-prob that is no number always does."""
        return self.covered & ~(self.old_kv & np.isfinite(self.gaps))

    @property
    def coverage(self) -> float:
        return float(self.covered.mean()) if len(self.covered) else 0.0


def distances(recorded: npt.NDArray[Any], recomputed: npt.NDArray[Any]) -> Gaps:
    """|recorded − recomputed|, infinite where one of them is not finite."""
    apart = np.abs(recorded.astype(np.float64) - recomputed.astype(np.float64))
    return np.where(np.isfinite(apart), apart, np.inf)


def summary(gaps: Gaps) -> dict[str, Any]:
    """tokens, max and mean; None of nothing."""
    if not len(gaps):
        return {"tokens": 0, "max": None, "mean": None}
    return {"tokens": len(gaps), "max": float(gaps.max()), "mean": float(gaps.mean())}


def by_version(evidence: Evidence) -> list[dict[str, Any]]:
    """For each version: its trained tokens, how many were recomputed, and how they agree."""
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
    """The same by position relative to updates, all recomputed tokens."""
    place = evidence.tokens.place
    return {p.name.lower(): summary(evidence.gaps[evidence.covered & (place == p)]) for p in Place}


def failing(evidence: Evidence, rule: Rule) -> Index:
    """The tokens that break the rule, or make the means break it; the worst first."""
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
    """One sentence for each check that failed; none: the audit passed."""
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
    """Versions whose mean is too high; all of them if only the whole run's is."""
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
