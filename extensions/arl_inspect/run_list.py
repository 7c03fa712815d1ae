"""The list of runs: their tables, the comparison of some, and the deletion of a run's folder."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from string import ascii_uppercase
from typing import Any, NamedTuple

from agentgym_rl.core import ConfigError, differences
from agentgym_rl.storage import RunSummary
from agentgym_rl.storage.run_folder import MARK, held
from agentgym_rl.storage.run_list import is_run, summary

from .notes import Notes, notes_of

_UNKNOWN = "-"
_DAY_S = 86400.0


def runs_lines(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Yield one line per run, ending with its complete folder, for use in other commands."""
    head = ("STATE", "BATCHES", "REWARD", "HELD-OUT", "AGE", "SIZE", "RUN")
    rows = [head, *(_row(run) for run in runs)]
    yield from _aligned(rows)
    for run in runs:
        if run.error:
            yield f"{run.run}: cannot be read: {run.error}"
        if run.end is not None and run.end.failure:
            yield f"{run.run} failed: {run.end.failure}"


def _row(run: RunSummary) -> tuple[str, ...]:
    return (
        run.state,
        _batches(run),
        _share(run.reward),
        _held_out(run),
        _age(time.time() - run.updated_s),
        size_text(run.size_bytes),
        run.run,
    )


def _batches(run: RunSummary) -> str:
    """Return the batches of a run, with its kind unless it is `train`."""
    if run.kind == "eval":
        return run.kind
    count = f"{run.batches}/{run.batches_planned}"
    return count if run.kind == "train" else f"{run.kind} {count}"


def _held_out(run: RunSummary) -> str:
    if run.kind == "eval":
        return _share(run.eval_after)
    measured = _measured(run)
    both = list(zip((run.eval_before, run.eval_after), measured, strict=True))
    if not _unlike(measured):
        return " → ".join(_share(reward) for reward, _ in both)
    return " → ".join(f"{_share(it)} of {how.num_tasks:,}" for it, how in both if how) + " tasks"


class _Measured(NamedTuple):
    """The extent of an evaluation."""

    num_tasks: int
    reward_ci: tuple[Any, Any] | None
    """The 95 % interval of the reward."""


def _measured(run: RunSummary) -> list[_Measured | None]:
    """Return how the rewards before and after were measured; None: not at all."""
    found: list[_Measured | None] = []
    for each in run.evaluated:
        num_tasks = each.get("eval/tasks", each.get("num_tasks"))
        low, high = each.get("eval/reward_low"), each.get("eval/reward_high")
        interval = each.get("reward_ci") or (None if None in (low, high) else (low, high))
        found.append(_Measured(int(num_tasks), interval) if num_tasks else None)
    return found


def _unlike(measured: Iterable[_Measured | None]) -> bool:
    """Return whether evaluations played different numbers of tasks."""
    return len({it.num_tasks for it in measured if it}) > 1


def _interval(measured: _Measured | None) -> str:
    ends = measured and measured.reward_ci
    return f"{ends[0]:.3f}-{ends[1]:.3f}" if ends else _UNKNOWN


def comparison_lines(
    runs: Sequence[RunSummary], different: Mapping[str, list[str]]
) -> Iterator[str]:
    """Yield the figures of the runs side by side, and their differing configuration keys."""
    names = [*ascii_uppercase][: len(runs)]
    for name, run in zip(names, runs, strict=True):
        yield f"{name}  {run.run}  ({run.env}, {run.agent or run.kind}, {run.engine})"
    yield ""
    over = ["mean ± deviation"] if only_seeds_differ(different) else []
    rows: list[tuple[str, ...]] = [("", *names, *over)]
    rows.append(("state", *(run.state for run in runs), *("" for _ in over)))
    rows.append(("batches", *map(_batches, runs), *("" for _ in over)))
    spread = spread_of(runs)
    for label, name, form in _FIGURES:
        found = spread[name]
        both = "" if found is None else f"{found['mean']:{form}} ± {found['deviation']:{form}}"
        values = (_number(_figure(run, name), form) for run in runs)
        rows.append((label, *values, *(both or _UNKNOWN for _ in over)))
        rows += [(label, *cells, *("" for _ in over)) for label, cells in _extent(runs, name)]
    yield from _aligned(rows)
    if said := _caution(runs, different):
        yield from ("", said)
    for name, run in zip(names[1:], runs[1:], strict=True):
        yield ""
        keys = different[run.run]
        yield f"{name} beside A: {'the same configuration' if not keys else ''}".rstrip()
        yield from (f"  {key}" for key in keys)


def _extent(runs: Sequence[RunSummary], name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield rows about how a held-out reward was measured: its interval, and the number of tasks if
    that is not everywhere the same."""
    if name not in ("eval_before", "eval_after"):
        return
    measured = [_measured(run)[name == "eval_after"] for run in runs]
    if any(it and it.reward_ci for it in measured):
        yield "  95 % interval", list(map(_interval, measured))
    if _unlike(it for run in runs for it in _measured(run)):
        yield "  tasks", [f"{it.num_tasks:,}" if it else _UNKNOWN for it in measured]


_MEASURES = ("env", "eval.split", "eval.seed", "eval.temperature", "eval.samples_per_task")
"""The keys, or sections, on which a held-out reward depends besides its number of tasks."""


def _caution(runs: Sequence[RunSummary], different: Mapping[str, list[str]]) -> str:
    """Return why the held-out rewards of the runs are not the same measure; "" if they are."""
    keys = set[str]().union(*map(_keys, different.values()))
    why = sorted(key for key in keys if key.startswith(_MEASURES))
    if _unlike(it for run in runs for it in _measured(run)):
        why.insert(0, "the number of tasks")
    if not why or all(run.eval_before is None and run.eval_after is None for run in runs):
        return ""
    return f"held-out rewards are unlike measures: {', '.join(why)} differ"


_FIGURES = (
    ("reward, last batches", "reward", ".3f"),
    ("held-out, before", "eval_before", ".3f"),
    ("held-out, after", "eval_after", ".3f"),
    ("staleness, versions", "staleness", ".2f"),
    ("overlap", "overlap", ".0%"),
    ("trained tokens/s", "trained_tokens_per_s", ",.0f"),
    ("idle ranks", "idle_share", ".0%"),
    ("token_mult_prob_error", "token_mult_prob_error", ".4f"),
    ("s per batch", "step_s", ".2f"),
)
"""The label, name and format of each figure of a run that is compared."""


def _figure(run: RunSummary, name: str) -> float | None:
    return run.means[name] if name in run.means else getattr(run, name)


def spread_of(runs: Sequence[RunSummary]) -> dict[str, dict[str, float] | None]:
    """Return the mean and the standard deviation of each figure of several runs; None where that
    of a run is not known."""
    found: dict[str, dict[str, float] | None] = {}
    for _, name, _ in _FIGURES:
        known = [value for run in runs if (value := _figure(run, name)) is not None]
        whole = len(known) == len(runs) > 1
        found[name] = {"mean": mean(known), "deviation": stdev(known)} if whole else None
    return found


def only_seeds_differ(different: Mapping[str, list[str]]) -> bool:
    """Return whether the runs are those of several seeds, with the same configuration otherwise."""
    keys = map(_keys, different.values())
    return all("seed" in each and each <= {"seed", "folder"} for each in keys)


def _keys(differences: Sequence[str]) -> set[str]:
    """Return the keys of `differences`."""
    return {each.partition(" ")[0] for each in differences}


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _share(value: float | None) -> str:
    return _number(value, ".3f")


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)


def _age(seconds: float) -> str:
    for unit, length_s in (("d", _DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size_text(size_bytes: int) -> str:
    """Format a size: "35 MB"."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def differing(runs: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Return, for each run, the differences of its configuration from that of the first run, except
    for the folder's name."""
    first, *others = runs
    return {
        run.run: differences(first.config, run.config, free=("run", "logging")) for run in others
    }


def delete(folder: Path) -> int:
    """Remove the folder of a run that is not running, with all its files; return its size in bytes.

    Raises:
        ConfigError: the folder does not belong to a run, or the run is running.
    """
    if not is_run(folder):
        raise ConfigError(f"{folder} is no run's folder (it has no {MARK}): nothing is deleted")
    with held(folder):
        size = summary(folder).size_bytes
        shutil.rmtree(folder)
    return size


def noted(run: RunSummary) -> dict[str, Any]:
    """Return the notes and tags of a run for `arl runs --json`; none of a file that cannot be
    read."""
    with contextlib.suppress(ConfigError):
        return asdict(notes_of(Path(run.run)))
    return asdict(Notes())


def tag_lines(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Yield one line per run that has tags, or whose notes cannot be read."""
    for run in runs:
        try:
            tags = notes_of(Path(run.run)).tags
        except ConfigError as error:
            yield str(error)
            continue
        if tags:
            yield f"{run.run}: tags: {', '.join(tags)}"
