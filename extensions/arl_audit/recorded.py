"""The reports of `arl audit` (numbers are |Δ log-prob| in nats), `arl ledger`, `arl replay`,
`arl reverify` and `arl export` as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_VERSIONS_SHOWN = 16

_PLACES = {
    "one_version": "turns of one version",
    "before_update": "turns with an update: before it",
    "after_update": "turns with an update: after it",
}


def audit_text(report: Mapping[str, Any]) -> str:
    """Render the JSON object of `arl audit --json` as text, with the verdict last."""
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
    """Yield the table of versions: the worst ones only, if there are many."""
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
        yield "no control: no two neighbouring versions were recomputed; labels that are one"
        yield "  version off could go unnoticed in a run this short"
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


def ledger_text(report: Mapping[str, Any]) -> str:
    """Return the report on a run as text; `report` is the object that `--json` prints."""
    again = report["batches_trained_again"]
    groups = ", ".join(f"{count} {status}" for status, count in sorted(report["groups"].items()))
    state = "finished" if report["finished"] else "not finished"
    if passed_over := report["passed_over"]:
        groups += f"; {passed_over} tasks that the curriculum passed over"
    return "\n".join(
        [
            f"batches      {report['batches']}, of {report['groups_trained']} groups ({state})",
            f"incarnations {report['incarnations']}; {again} batches trained again from the log, "
            f"{report['of_these_bit_for_bit']} of them bit for bit",
            f"groups       {groups or 'none'}",
            *(f"FAULT        {fault}" for fault in report["faults"]),
            "every group was trained exactly once, none skipped"
            if report["passed"]
            else f"{len(report['faults'])} faults",
        ]
    )


def replay_text(report: Mapping[str, Any]) -> str:
    """Return the comparison batch by batch; `report` is the object that `--json` prints."""
    lines = [f"from {report['checkpoint'] or 'the model that the run began with'}"]
    others: dict[str, str] = {}
    for row in report["batches"]:
        was, now = row["loss"]
        before, after = row["parameters"]
        verdict = "bit for bit" if row["bit_for_bit"] else f"recorded {was!r}, {before}"
        ranks = f" (the run had {row['num_ranks']} ranks)" if row["num_ranks"] > 1 else ""
        lines.append(f"step {row['step']:>4}  loss {now!r}  weights {after}  {verdict}{ranks}")
        then, here = row["builds"]
        if then != here and not row["bit_for_bit"]:
            hashes = ", which hashed weights in another way" if row["other_hash"] else ""
            others[then] = f"the run was trained by {then}{hashes}; this is {here}"
    verdict = "the same" if report["passed"] else "NOT the same"
    if report["passed"] and not report["bit_for_bit"]:
        verdict = "the same loss, up to rounding"
    return "\n".join([*lines, *others.values(), verdict])


_LISTED = 20


def reverify_text(report: Mapping[str, Any]) -> str:
    """Render the JSON object of `arl reverify --json` as text, with the verdict last."""
    return "\n".join(
        [
            *_reverify_head(report),
            *_changes(report["changes"]),
            *_diverged(report["diverged"]),
            *_failures(report["failures"]),
            "",
            _reverify_verdict(report),
        ]
    )


def _reverify_head(report: Mapping[str, Any]) -> Iterator[str]:
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
        yield from ("", "other differences from the recording:")
    for row in rows[:_LISTED]:
        yield f"  {row['episode']}, {row['task']}: {row['what']}"
    yield from _more(rows)


def _failures(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the reasons why episodes were not played again, each reason once."""
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


def _reverify_verdict(report: Mapping[str, Any]) -> str:
    replayed = report["unchanged"] + report["changed"]
    if report["changed"]:
        return f"CHANGED {report['changed']:,} of {replayed:,} rewards"
    return f"UNCHANGED {replayed:,} rewards"


def export_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for the JSON object of `arl export` of episodes."""
    splits = ", ".join(f"{count:,} {split}" for split, count in report["splits"].items())
    yield f"{report['lines']:,} lines of {report['episodes']:,} episodes ({splits})"
    if report["left_out"]:
        causes = ", ".join(f"{count:,} for {why}" for why, count in report["left_out"].items())
        yield f"left out: {causes}"
    yield from (f"  {named}" for named in report.get("failed", ()))
    if labels := report.get("labels"):
        yield f"labels: {labels.get('good', 0):,} good, {labels.get('bad', 0):,} bad"
        if len(labels) < 2:
            yield "KTO learns from both kinds: choose another --min-reward"
    if report["forked"]:
        yield (
            f"forked: {report['forked']:,} of these episodes; messages are of their last "
            "conversation alone"
        )
    if report["splits"].get("eval"):
        yield (
            "held-out tasks are among them: a model trained on these cannot be evaluated there "
            "(--split train leaves them out; arl eval --eval.split=train plays training tasks)"
        )
    yield f"written: {report['out']}"
