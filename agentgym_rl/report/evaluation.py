"""The texts of `arl eval`: mean rewards with their confidence intervals, pass@k and cost; the table
of several models; and the evaluations of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentgym_rl.storage import EvalRecord

from .figures import counts, evaluated_lines, figures, pace_lines, token_lines, usd, verdict_lines

UNKNOWN = "interval unknown: one task"


def eval_line(record: EvalRecord) -> str:
    """Return the line about an evaluation that has ended."""
    return f"version {record.version}: {_outcome(record.line(), 'held-out reward ')}"


def evaluation_lines(result: Mapping[str, Any]) -> list[str]:
    """Return lines about a finished run's evaluations between the first and the last one, and about
    its best checkpoint; `result` is the object that `arl train --json` prints."""
    lines = _intervals(result)
    for line in result["evaluations"]:
        if 0 < line["version"] < result["steps"]:
            lines += figures(f"  version {line['version']}", _outcome(line, ""))
    if best := result["best"]:
        text = f"{best['checkpoint']} ({best['metric']} {best['value']:.3f})"
        lines += figures("best checkpoint", text)
        lines += figures("", f"arl export --model {best['checkpoint']} --out FOLDER")
    return lines


def _intervals(result: Mapping[str, Any]) -> list[str]:
    """Return the intervals of the first and the last evaluation.

    Their rewards are printed above this as bare numbers.
    """
    done = {line["version"]: line for line in result["evaluations"] if line["status"] == "done"}
    ends = [done.get(version) for version in (0, result["steps"])]
    if not any(ends):
        return []
    text = " → ".join(_interval(line) if line else "-" for line in ends)
    counts = {int(line["eval/tasks"]) for line in ends if line and line.get("eval/tasks")}
    tasks = " and ".join(f"{count:,}" for count in sorted(counts))
    over = f", over {tasks} task{'s' * (counts != {1})}" if counts else ""
    return figures("", f"95 % intervals {text}{over}")


def _outcome(line: Mapping[str, Any], name: str) -> str:
    if line["status"] != "done":
        why = str(line.get("error", "")).strip().splitlines()
        return f"evaluation {line['status']}{': ' + why[0] if why else ''}"
    left_out = line.get("eval/too_long")
    also = f"; {left_out:,.0f} episodes too long to be played" if left_out else ""
    return f"{name}{line['eval/reward']:.3f} ({_interval(line)}){also}"


def _interval(line: Mapping[str, Any]) -> str:
    low, high = line["eval/reward_low"], line["eval/reward_high"]
    return UNKNOWN if low is None or high is None else f"{low:.3f} to {high:.3f}"


_UNKNOWN = "-"


def summary_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the summary of one model from the JSON object of `arl eval`."""
    interval = UNKNOWN
    if result["reward_ci"]:
        interval = f"95 % interval {_range(result['reward_ci'])}, errors clustered by task"
    tasks = f"{result['num_tasks']:,} task{'s' * (result['num_tasks'] != 1)}"
    text = f"{result['reward']:.3f} over {tasks}, {interval}"
    trained = result.get("split") == "train"
    yield from figures("training reward" if trained else "held-out reward", text)
    yield from _estimate_lines(result)
    yield from figures(
        "episodes",
        f"{counts(result['outcomes'])}; {result['turns']:.2f} turns and "
        f"{result['tool_calls']:.2f} tool calls each; {result['duration_s']:.0f} s in all",
    )
    yield from evaluated_lines(result["envs"])
    yield from verdict_lines(result)
    yield from token_lines(result)
    if result["episodes"]:
        yield from pace_lines(result)


def _estimate_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield pass@k (unless it equals the mean reward) and the cost, if they are known, and the
    number of resumed episodes."""
    several = result["num_episodes"] > result["num_tasks"]
    for k, found in result["pass_at"].items():
        if several or not math.isclose(found["value"], result["reward"], abs_tol=1e-9):
            yield from figures(f"pass@{k}", f"{found['value']:.3f}{_bracketed(found['ci'])}")
    if result["cost_usd"] is not None:
        yield from figures("cost", usd(result["cost_usd"]))
    if result["resumed"]:
        yield from figures("kept", f"{result['resumed']:,} episodes were there before")


def print_table(comparison: Mapping[str, Any]) -> None:
    """Print the models of `compare.compare` side by side on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=160)
    console.print(_table(comparison["models"]))


def _table(reports: Sequence[Mapping[str, Any]]) -> Table:
    ks = list(dict.fromkeys(k for report in reports for k in report["pass_at"]))
    several = any(report["num_episodes"] > report["num_tasks"] for report in reports)
    priced = any(report["cost_usd"] is not None for report in reports)
    table = Table(
        box=None, pad_edge=False, caption="(95 % intervals); +/-: to the first, paired by task"
    )
    table.add_column("model", overflow="fold")
    names = ["reward", "+/-", *(f"pass@{k}" for k in ks if several), "tasks", "turns"]
    for name in (*names, "tokens in/out", *(["cost"] if priced else []), "s/episode"):
        table.add_column(name, justify="right")
    for report in reports:
        passed = [_estimate(report["pass_at"].get(k)) for k in ks if several]
        cost = report["cost_usd"]
        table.add_row(
            escape(report["model"]) + ("" if report.get("finished", True) else " (unfinished)"),
            f"{report['reward']:.3f}{_bracketed(report['reward_ci'])}",
            _estimate(report["difference"], sign="+"),
            *passed,
            f"{report['num_tasks']:,}",
            f"{report['turns']:.2f}",
            f"{report['prompt_tokens']:,}/{report['completion_tokens']:,}",
            *([_UNKNOWN if cost is None else usd(cost)] if priced else []),
            f"{report['metrics'].get('duration_s', 0.0):.2f}",
        )
    return table


def _estimate(found: Mapping[str, Any] | None, *, sign: str = "") -> str:
    if found is None:
        return _UNKNOWN
    value = format(found["value"], f"{sign}.3f")
    return f"{value}{_bracketed(found['ci'], sign=sign)}"


def _bracketed(ci: Sequence[float] | None, *, sign: str = "") -> str:
    return f" ({_range(ci, sign=sign)})" if ci else ""


def _range(ci: Sequence[float], *, sign: str = "") -> str:
    low, high = (format(bound, f"{sign}.3f") for bound in ci)
    return f"{low} to {high}"
