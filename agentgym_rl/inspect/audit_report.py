"""The report of `arl audit`, for people: numbers are |Δ log-prob| in nats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_VERSIONS_SHOWN = 16

_PLACES = {
    "one_version": "turns of one version",
    "before_update": "turns with an update: before it",
    "after_update": "turns with an update: after it",
}


def audit_text(report: Mapping[str, Any]) -> str:
    """The JSON object of `arl audit --json` as text, the verdict last."""
    return "\n".join(
        [*_head(report), "", *_versions(report), "", *_totals(report), "", *_verdict(report)]
    )


def _head(report: Mapping[str, Any]) -> Iterator[str]:
    done, steps = report["steps_published"], report["steps"]
    yield f"audit of {report['run']}: {report['tokens']:,} trained tokens, recomputed by the"
    yield "trainer's forward of the policy version recorded with each, at its recorded temperature"
    yield (
        f"{report['dtype']}, rollout.interrupt {report['interrupt']}; limit "
        f"{report['threshold']:g} on {report['criterion']}"
    )
    if done < steps:
        yield f"not finished: {done} of {steps} training batches so far"


def _versions(report: Mapping[str, Any]) -> Iterator[str]:
    """The table of versions; of many, the worst."""
    rows = report["versions"]
    if len(rows) > _VERSIONS_SHOWN:
        yield f"the {_VERSIONS_SHOWN} worst of {len(rows)} versions (--json has them all)"
        worst = sorted(rows, key=lambda row: (row["coverage"], -(row["max"] or 0)))
        rows = sorted(worst[:_VERSIONS_SHOWN], key=lambda row: row["version"])
    yield "version    tokens  recomputed   max |Δ|  mean |Δ|  on older KV"
    for row in rows:
        yield (
            f"{row['version']:>7} {row['tokens']:>9,} {row['coverage']:>11.0%} "
            f"{_number(row['max']):>9} {_number(row['mean']):>9} {row['mixed_kv_tokens']:>12,}"
        )


def _totals(report: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"coverage {report['coverage']:.1%}   max {_number(report['max'])}   "
        f"mean {_number(report['mean'])}   99.9th percentile {_number(report['p999'])}"
    )
    for key, text in _PLACES.items():
        yield f"  {text:<32} {_numbers(report['places'][key])}"
    mixed = report["mixed_kv"]
    if mixed["tokens"]:
        yield f"  {'follow an update on old KV':<32} {_numbers(mixed)}"
        yield "    not judged: with rollout.interrupt keep they stand on KV of several versions,"
        yield "    which a plain forward of one version is not meant to reproduce"
    yield from _control(report["control"])


def _control(control: Mapping[str, Any]) -> Iterator[str]:
    if not control["tokens"]:
        yield "no control: no two neighbouring versions were recomputed"
        return
    yield (
        "control: the version BEFORE theirs would be beyond the limit for "
        f"{control['noticed']:.0%} of {control['tokens']:,} tokens "
        f"(mean {_number(control['mean'])})"
    )
    if not control["sharp"]:
        yield "  versions hardly differ here: an off-by-one version could go unnoticed"


def _verdict(report: Mapping[str, Any]) -> Iterator[str]:
    if report["passed"]:
        yield "PASSED"
        return
    yield from (f"FAILED {sentence}" for sentence in report["failures"])
    if report["worst"]:
        yield "the worst tokens:"
        yield "  version  row position  recorded  recomputed  episode"
    for token in report["worst"]:
        yield (
            f"  {token['version']:>7} {token['row']:>4} {token['position']:>8} "
            f"{token['recorded']:>9.4f} {token['recomputed']:>11.4f}  {token['episode']}"
        )
    yield from (f"hint: {hint}" for hint in (report["diagnosis"] or {}).get("hints", []))


def _numbers(found: Mapping[str, Any]) -> str:
    if not found["tokens"]:
        return f"{0:>9} tokens"
    return (
        f"{found['tokens']:>9,} tokens   max {_number(found['max'])}   "
        f"mean {_number(found['mean'])}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
