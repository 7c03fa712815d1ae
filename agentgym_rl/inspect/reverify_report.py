"""The report of `arl reverify`, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_LISTED = 20


def reverify_text(report: Mapping[str, Any]) -> str:
    """The JSON object of `arl reverify --json` as text, the verdict last."""
    return "\n".join(
        [
            *_head(report),
            *_changes(report["changes"]),
            *_diverged(report["diverged"]),
            *_failures(report["failures"]),
            "",
            _verdict(report),
        ]
    )


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    reward = report["reward"]
    yield f"reverify of {report['run']}: {report['episodes']:,} recorded episodes, their actions"
    yield f"played again in {report['env']} as it is now"
    yield ""
    yield f"{'outcome':<14}{'unchanged':>10}{'changed':>10}{'not replayed':>14}"
    for outcome, found in report["outcomes"].items():
        counts = (found.get(kind, 0) for kind in ("unchanged", "changed", "not_replayed"))
        yield "{:<14}{:>10,}{:>10,}{:>14,}".format(outcome, *counts)
    yield f"mean reward of those replayed: {reward['old']:.4f} → {reward['new']:.4f}"


def _changes(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    if rows:
        yield from ("", "rewards that changed:", "  recorded       now  episode, task, verifier")
    for row in rows[:_LISTED]:
        told = ": ".join(filter(None, (row["verifier"], row["verifier_detail"])))
        yield (
            f"  {row['old']:>8.4g}  {row['new']:>8.4g}  {row['episode']}, {row['task']}"
            f"{f', {told}' if told else ''}"
        )
    yield from _more(rows)


def _diverged(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    if rows:
        yield from ("", "what else went otherwise than recorded:")
    for row in rows[:_LISTED]:
        yield f"  {row['episode']}, {row['task']}: {row['what']}"
    yield from _more(rows)


def _failures(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """Why episodes were not played again, each reason once."""
    reasons = Counter(row["why"] for row in rows)
    if reasons:
        yield from ("", "not replayed, and so neither changed nor unchanged:")
    for why, count in reasons.most_common(_LISTED):
        example = next(row["episode"] for row in rows if row["why"] == why)
        yield f"  {count:,} (as {example}): {why}"
    yield from _more(reasons)


def _more(rows: list[Any] | Mapping[str, int]) -> Iterator[str]:
    if len(rows) > _LISTED:
        yield f"  and {len(rows) - _LISTED:,} more (--json has them all)"


def _verdict(report: Mapping[str, Any]) -> str:
    replayed = report["unchanged"] + report["changed"]
    if report["changed"]:
        return f"CHANGED {report['changed']:,} of {replayed:,} rewards"
    return f"UNCHANGED {replayed:,} rewards"
