"""The runs on this machine, read from their folders."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentgym_rl.config import ENGINES
from agentgym_rl.core import ConfigError, is_dict, parse_json, parse_toml
from agentgym_rl.runtime.frozen import state

from .evaluations import LINES
from .run_end import RunEnd, RunKind, end_of, kind_of_folder
from .run_folder import EVALUATED, EVALUATION_RESULT, MARK, holder, is_held, shown

State = Literal["running", "frozen", "finished", "stopped", "failed"]
LAST = 5
"""The number of last batches over which the reward is averaged."""
_READERS = ("episodes.db-shm", "episodes.db-wal", "notes.json")
"""The files that also a reader of a run creates."""
MEANS: Mapping[str, str] = {
    "staleness": "staleness/mean",
    "overlap": "overlap",
    "trained_tokens_per_s": "throughput/trained_tokens_per_s",
    "idle_share": "trainer/idle_share",
    "token_mult_prob_error": "mismatch/token_mult_prob_error",
    "step_s": "time/step",
}
"""The metrics that are averaged over all batches except the first, by their names in a summary."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summary of a run, made without reading its episodes."""

    run: str
    """The run's folder, as a user would type it in the current folder."""
    state: State
    """The state of the run. `stopped`: interrupted or killed before its last batch; `arl train
    --resume` continues. `failed`: ended by an error, which `end` records; continues alike.
    `frozen`: `arl train` was stopped by a signal, and continues with `fg` or `kill -CONT`."""
    env: str
    agent: str
    """The agent; empty: other programs play (`arl serve`)."""
    engine: str
    batches: int
    batches_planned: int
    reward: float | None
    """The mean reward of training episodes in the last batches."""
    eval_before: float | None
    """The held-out reward of version 0."""
    eval_after: float | None
    """The held-out reward of the newest version that was evaluated after training began."""
    means: Mapping[str, float | None]
    """The mean metrics, by the names of `MEANS`."""
    updated_s: float
    """The time of the last write, in seconds since 1970."""
    size_bytes: int
    error: str = ""
    """The reason why the folder cannot be read; empty: it can."""
    kind: RunKind = "train"
    """The command that made the folder. An evaluation (`arl eval --out`) has no batches, and its
    reward."""
    end: RunEnd | None = None
    """The end of its last process, if that failed or was interrupted."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    evaluated: tuple[Mapping[str, Any], Mapping[str, Any]] = field(default=({}, {}), repr=False)
    """The metrics of the evaluations before and after; of an evaluation, its result."""

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return Path(self.run).name


def find_runs(places: Sequence[Path], *, as_named: bool = False) -> list[RunSummary]:
    """Return the runs in `places`, each a run or a folder of runs, the newest first; `as_named`: in
    the order of `places`.

    Raises:
        ConfigError: a place does not exist.
    """
    folders: dict[Path, None] = {}
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"no folder {place}: pass runs, or folders with runs in them")
        inside = [place] if is_run(place) else sorted(p for p in place.iterdir() if is_run(p))
        folders.update(dict.fromkeys(path.resolve() for path in inside))
    found = [summary(folder) for folder in folders]
    return found if as_named else sorted(found, key=lambda run: -run.updated_s)


def is_run(folder: Path) -> bool:
    """Return whether the folder belongs to a run."""
    return (folder / MARK).is_file()


def summary(folder: Path) -> RunSummary:
    """Return the summary of the run in `folder`; a file that cannot be read is reported in `error`,
    not raised."""
    error = ""
    config: Mapping[str, Any] = {}
    steps: list[Mapping[str, Any]] = []
    evaluations: list[Mapping[str, Any]] = []
    try:
        config = _config(folder / MARK)
        steps = _lines(folder / "metrics.jsonl")
        evaluations = _lines(folder / LINES)
    except (OSError, ValueError) as caught:
        error = str(caught)
    files = [(path, path.stat()) for path in _files(folder)]
    none: Mapping[str, Any] = {}
    first = next((e for e in evaluations if e.get("version") == 0), none)
    last = next((e for e in reversed(evaluations) if e.get("version")), none)
    kind, result = kind_of_folder(folder), evaluation_of(folder)
    planned = 0 if kind == "eval" else int(config.get("steps", 0))
    if kind == "eval":
        last = result if result.get("split", "eval") == "eval" else none
    return RunSummary(
        run=shown(folder),
        state=state_of(folder, len(steps), planned),
        env=_of(config, "env"),
        agent=_of(config, "agent") if kind != "serve" else "",
        engine=str(config.get("engine", {}).get("type", ENGINES.usual)),
        batches=len(steps),
        batches_planned=planned,
        reward=result.get("reward") if kind == "eval" else recent_reward(steps),
        eval_before=first.get("eval/reward"),
        eval_after=last.get("reward" if kind == "eval" else "eval/reward"),
        means={k: _mean(step.get(name) for step in steps[1:]) for k, name in MEANS.items()},
        updated_s=max((s.st_mtime for path, s in files if path.name not in _READERS), default=0.0),
        size_bytes=sum(stat.st_size for _, stat in files),
        error=error,
        kind=kind,
        end=end_of(folder),
        config=config,
        evaluated=(first, last),
    )


def recent_reward(steps: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the reward of a run as one number: the mean reward of training episodes in its last
    `LAST` batches, from the metrics of its steps."""
    return _mean(step.get("reward/mean") for step in steps[-LAST:])


def _files(folder: Path) -> Iterable[Path]:
    """Yield the files in a folder; those of a live run may disappear meanwhile."""
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                yield path


def _config(file: Path) -> Mapping[str, Any]:
    """Return the configuration of a run; ValueError: it is not TOML."""
    try:
        return parse_toml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from None


def _lines(file: Path) -> list[Mapping[str, Any]]:
    """Return the objects of a JSON Lines file; a last line that is being written is left out.

    Raises:
        ValueError: another line is not JSON.
    """
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    found: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse_json(line))
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"{file.name}, line {number}: {error}") from None
    return found


def evaluation_of(folder: Path) -> Mapping[str, Any]:
    """Return the result of an evaluation (`arl eval --out`), as `arl eval --json` prints it; empty:
    the folder holds none, or it has not finished."""
    try:
        found = parse_json((folder / EVALUATION_RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if is_dict(found) else {}


def state_of(folder: Path, batches: int, planned: int) -> State:
    """Return the state of the run in `folder`, which has trained `batches` of `planned`."""
    if is_held(folder):
        return "frozen" if state(holder(folder)) == "T" else "running"
    end = end_of(folder)
    if end is not None and end.state == "failed":
        return "failed"
    if (folder / EVALUATED).exists():
        return "finished" if end is None and evaluation_of(folder) else "stopped"
    return "finished" if 0 < planned <= batches and (folder / "export").exists() else "stopped"


def _of(config: Mapping[str, Any], section: str) -> str:
    return str(config.get(section, {}).get("id", ""))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
