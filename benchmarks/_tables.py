"""Tables of docs/measurements.md, in Markdown, by benchmark. Everything else is in report.html."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._formatting import formatted, listed, numeric_ratios, outcome
from ._kept import Kept

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """A table with a line for each row that has the last of `columns` (headings, and keys of rows).

    A key may be nested (`features.retries`).
    """

    columns: Mapping[str, str]

    def text(self, rows: Sequence[Row]) -> str:
        *_, last = keys = list(self.columns.values())
        found = [row for row in rows if _inside(row, last) is not None]
        if not found:
            return ""  # earlier results have no such rows
        return markdown(
            list(self.columns), ([formatted(_inside(row, key)) for key in keys] for row in found)
        )


@dataclass(frozen=True)
class Pivot:
    """A table with a line for each value of `lines` and a column for each of `over`; the values of
    `cells` are separated by slashes."""

    lines: Sequence[str]
    over: Sequence[str]
    cells: Sequence[str]

    def text(self, rows: Sequence[Row]) -> str:
        found: dict[tuple[str, ...], dict[str, str]] = {}
        columns: dict[str, None] = {}
        for row in rows:
            if not any(key in row for key in self.cells):
                continue
            column = ", ".join(formatted(row[key]) for key in self.over)
            line = found.setdefault(tuple(formatted(row[key]) for key in self.lines), {})
            line[column] = " / ".join(formatted(row.get(key)) for key in self.cells)
            columns[column] = None
        cells = [[*line, *(of.get(name, "") for name in columns)] for line, of in found.items()]
        return markdown([*self.lines, *columns], cells)


_FEATURES = (
    *("tool calls", "malformed calls", "thoughts", "truncated", "stop strings", "unicode said"),
    *("unicode heard", "n>1", "retries", "hang-ups"),
)
_FORKS = ("history_edit", "think_drop", "n_sibling", "sibling", "new_root", "seam", "args_edit")

_PAUSES = Pivot(
    ["system", "parameters"],
    ["interrupt"],
    ["pause_median_ms", "pause_max_ms", "tokens_per_s"],
)
_PUBLICATION = Grid(
    {"model": "model", "engines' dtype": "dtype", "transport": "transport"}
    | {"ranks": "ranks", "to": "to", "bytes": "bytes", "write, s": "write_s"}
    | {"stage and swap, s": "send_s", "pause, ms": "pause_ms"}
    | {"rank 0, loaded, GB": "rank_0_before_gb", "its peak": "rank_0_gb"}
    | {"peak of the other rank": "other_rank_gb", "of the receiver": "receiver_gb"}
    | {"load": "load"}
)

TABLES: Mapping[str, Sequence[Grid | Pivot]] = {
    "env": [Pivot(["system"], ["env", "live"], ["cpu_us_per_step"])],
    "math": [
        Grid(
            {"system": "system", "subset": "subset", "F1": "f1", "precision": "precision"}
            | {"recall": "recall", "false positives": "fp", "false negatives": "fn"}
            | {"no verdict": "no_verdict", "ms, median": "ms_median", "p99": "ms_p99"}
        )
    ],
    "gateway": [
        Grid(
            {"system": "system", "turns/s": "turns_per_s", "CPU ms a turn": "cpu_ms_per_turn"}
            | {"at 100 turns/s, added ms, p50": "paced_added_p50_ms", "p99": "paced_added_p99_ms"}
            | {"at 32,000 tokens over at 8,000": "last_over_first"}
            | {"one at a time, added ms, p50": "added_p50_ms", " p99": "added_p99_ms"}
        ),
        Grid(
            {"large requests, MB": "beside_requests_mb", "of them": "beside_requests"}
            | {"turns beside them": "turns", "p50 ms": "paced_p50_ms", "p99 ms": "paced_p99_ms"}
            | {"the longest large request, ms": "beside_request_max_ms"}
        ),
        Grid(
            {"sessions at once": "sessions_at_once", "seconds": "seconds", "turns": "turns"}
            | {
                "errors": "errors",
                "MB after the first": "rss_mb_first",
                "at the end": "rss_mb_last",
            }
        ),
    ],
    "sandbox": [Pivot(["system"], ["concurrency"], ["p50_ms", "p99_ms", "per_s"])],
    "coding": [
        Grid(
            {"sandbox": "sandbox", "player": "player", "episodes": "episodes", "reward": "reward"}
            | {"episodes/s": "episodes_per_s", "verdicts": "verdicts", "left over": "left_over"}
        )
    ],
    "code": [
        Grid(
            {"system": "system", "reward": "reward", "verdicts": "verdicts"}
            | {"episodes/s": "episodes_per_s", "event loop late, p99 ms": "stall_p99_ms"}
            | {"tests/s": "tests_per_s", "tests/s a core": "tests_per_s_per_core"}
        )
    ],
    "engine": [
        Pivot(["model"], ["system"], ["tokens_per_s"]),
        Grid(
            {"model": "model", "work": "work", "prefix cache": "prefix_cache"}
            | {"different tokens": "tokens_distinct", "prefilled": "tokens_prefilled"}
            | {"decode thread, CPU s": "decode_thread_cpu_s", "speed": "times_as_fast_as_off"}
        ),
    ],
    "real": [
        Pivot(["case"], ["system"], ["tokens_per_s", "tokens_per_cpu_s"]),
        Grid(
            {"engine": "system", "mean |Δ| to float32": "mean_abs", "max": "max_abs"}
            | {"mean exp": "mean_exp", "beyond 0.1": "share_beyond_0.1"}
        ),
        Grid(
            {"peak, in float32 weights, KV not counted": "system", "load": "load_x"}
            | {"after": "loaded_x", "two updates": "update_x", "then": "updated_x"}
        ),
        Grid(
            {"a step of eight rows": "system", "their prompts": "prompts"}
            | {"tokens of rows": "row_tokens", "computed": "computed_tokens"}
            | {"peak, in weights": "peak_times_weights", "CPU s": "step_cpu_s"}
        ),
        Grid({"trainer": "phase", "CPU s": "cpu_s", "peak, in weights": "peak_times_weights"}),
        Grid({"a publication": "phase", "ms": "wall_ms", "times a copy": "times_copy"}),
    ],
    "weights": [_PAUSES],
    "weights-sglang": [_PAUSES],
    "publication": [_PUBLICATION],
    "publication-1.3B": [_PUBLICATION],
    "trainer": [
        Grid(
            {"lengths": "lengths", "system": "system", "micro-batches": "micro_batches"}
            | {"padding": "padding", "tokens/s": "tokens_per_s"}
        ),
        Grid(
            {"rows": "rows", "system": "system", "tokens computed": "tokens_computed"}
            | {"CPU seconds of forward and backward": "cpu_s"}
        ),
        Grid(
            {"groups x members": "batch", "minibatches": "minibatches", "ranks": "ranks"}
            | {"busy, of computed tokens": "busy_of_computed", "busy, of all": "busy"}
        ),
        Grid({"groups": "groups", "ranks": "ranks", "imbalance": "imbalance"}),
        Grid(
            {"seed": "seed", "system": "system", "reward by ten batches": "reward_by_tens"}
            | {"held-out reward after": "eval_after", "seconds of training": "train_s"}
        ),
    ],
    "train": [
        Grid(
            {"run": "system", "seed": "seed", "before": "eval_before", "after": "eval_after"}
            | {"tool calls after": "tool_calls", "staleness, mean": "staleness_mean"}
            | {"max": "staleness_max", "groups dropped": "groups_dropped", "overlap": "overlap"}
            | {"seconds": "seconds"}
        )
    ],
    "exactness": [
        Grid(
            {"engine": "engine", "episodes": "episodes", "turns": "turns"}
            | {"sampled tokens": "sampled_tokens", "rows": "rows", "updates": "router.updates"}
            | {"turns of several versions": "features.turns of several versions"}
            | {"sent again": "router.resubmissions", "mismatches": "mismatches"}
            | {"seconds": "seconds"}
        ),
        Grid({"engine": "engine"} | {name: f"features.{name}" for name in _FEATURES}),
        Grid({"engine": "engine"} | {name: f"forks_by_cause.{name}" for name in _FORKS}),
    ],
    "crash": [
        Grid(
            {"system": "system", "kills": "kills", "batches": "batches"}
            | {"trained again": "batches_trained_again", "bit for bit": "of_these_bit_for_bit"}
            | {"faults": "faults", "p of lengths": "lengths_p", "mean tokens": "mean_tokens"}
            | {"resumed after, s": "resume_s", "last weights": "parameters"}
        )
    ],
    "distill": [
        Grid(
            {"way": "system", "steps": "steps", "seeds": "seeds", "before": "before"}
            | {"divergence from the teacher, last batch": "last_teacher_kl"}
            | {"steps to the teacher's reward, by seed": "needed", "worst seed": "worst"}
            | {"held-out reward after": "after"}
        )
    ],
    "curriculum": [
        Grid(
            {"seed": "seed", "tasks": "system", "batches": "batches", "episodes": "episodes"}
            | {"passed over": "passed_over", "groups of equal rewards": "equal_groups"}
            | {"held-out reward before": "eval_before", "after": "eval_after"}
        )
    ],
    "selfplay": [
        Grid(
            {"way": "system", "seed": "seed", "not lost to the erring player": "erring_before"}
            | {"after": "erring_after", "to the random one": "random_before"}
            | {"after ": "random_after", "seconds": "seconds"}
        )
    ],
    "staleness": [Pivot(["variant"], ["bound"], ["eval_after", "worst", "staleness"])],
}
"""The tables of each benchmark; the page explains cells with several figures."""


_MOST_RATIOS = 8
"""The most ratios of a section; more are only in the table of all benchmarks."""


def section(kept: Kept) -> str:
    """Return a benchmark's section of the page: how it was measured, its tables, and its goal."""
    head = (
        f"`{kept.command}`, {kept.date}, {kept.seconds:,.0f} s, load average {kept.load[0]} to "
        f"{kept.load[1]}; {kept.result.get('hardware', '')}; "
        f"{formatted(kept.result.get('versions'))}."
    )
    rows = kept.result.get("table") or kept.result.get("rows") or []
    tables = [text for table in TABLES[kept.name] if (text := table.text(rows))]
    goal = outcome(kept.result)
    ratios = numeric_ratios(kept.result)
    if 0 < len(ratios) <= _MOST_RATIOS:
        goal += f" Ratios: {listed(ratios)}."
    return "\n\n".join([head, *tables, goal])


def markdown(names: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    bar, escaped = "|", "\\|"
    rows = (" | ".join(cell.replace(bar, escaped) for cell in line) for line in lines)
    heads = f"| {' | '.join(names)} |\n|{bar.join(['---'] * len(names))}|"
    return "\n".join([heads, *(f"| {row} |" for row in rows)])


def _inside(row: Row, key: str) -> Any:
    found: Any = row
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
