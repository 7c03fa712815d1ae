"""The times of a run as slices on rows, grouped by process: for the page, and as a trace file.

The format of the file is Chrome's, read by https://ui.perfetto.dev and chrome://tracing: "Trace
Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
(complete events `X`, counters `C`, metadata `M`; times in microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from agentgym_rl.core import Trajectory
from agentgym_rl.runtime import new_file
from agentgym_rl.storage import EpisodeReader, StepPhases, config_of, read_phases
from agentgym_rl.storage.phases import PHASES, Interval

from .folders import InspectedRun
from .query import Query, wrong

TRAINER, ENGINES, ROLLOUT = 1, 2, 3
"""The process numbers of the trace, which are also their order."""
LAST = 10
"""The number of steps that are shown by default."""
_AHEAD = 4
"""The number of later steps whose episodes are included, since they were played meanwhile."""
MOST = 2000
"""The largest number of episodes that are read."""

Event = Mapping[str, Any]
_Rows = dict[str, list[tuple[str, int, float, float]]]
"""The (phase, step, start, end) slices of each process, by name."""


@dataclass(slots=True)
class Lanes:
    """The rows for slices that overlap: each slice gets the first row that is free at its start."""

    _ends: list[float] = field(default_factory=list[float])

    def take(self, start_s: float, end_s: float) -> int:
        """Return the row of a slice; call in order of start."""
        for lane, end in enumerate(self._ends):
            if end <= start_s:
                self._ends[lane] = end_s
                return lane
        self._ends.append(end_s)
        return len(self._ends) - 1


@dataclass(frozen=True, slots=True)
class Sampled:
    """The times at which the tokens of an episode were sampled."""

    name: str
    start_s: float
    end_s: float
    args: Mapping[str, Any]
    turns: list[tuple[int, float, float, Mapping[str, Any]]]
    """The (turn, first token, last token, arguments) of each turn."""

    @classmethod
    def of(cls, episode: Trajectory) -> Sampled | None:
        """Return the times of an episode; None if no token was sampled."""
        turns: dict[int, tuple[float, float, dict[str, Any]]] = {}
        for row in episode.rows:
            for turn in np.unique(row.turn_ids[row.times_s > 0]).tolist():
                mine = (row.turn_ids == turn) & (row.times_s > 0)
                times, versions = row.times_s[mine], row.policy_versions[mine]
                about = {"tokens": int(mine.sum()), "versions": np.unique(versions).tolist()}
                turns[turn] = (float(times.min()), float(times.max()), about)
        if not turns:
            return None
        args = {
            "episode": episode.episode_id,
            "group": episode.group_id,
            "reward": episode.reward,
            "outcome": episode.outcome.value,
            "env": episode.env_id,
        }
        return cls(
            name=episode.task_id,
            start_s=min(start for start, _, _ in turns.values()),
            end_s=max(end for _, end, _ in turns.values()),
            args=args,
            turns=[(turn, *turns[turn]) for turn in sorted(turns)],
        )


def events(steps: Iterable[StepPhases], episodes: Iterable[Sampled]) -> Iterator[Event]:
    """Yield the events of the trace; its time 0 is the start of the first event."""
    trained = list(steps)
    played = sorted(episodes, key=lambda episode: episode.start_s)
    ranks, engines = _by_process(trained)
    starts = [start for of in (ranks, engines) for _, _, start, _ in chain(*of.values())]
    zero_s = min([*starts, *(episode.start_s for episode in played[:1])], default=0.0)
    for process, title, rows in ((TRAINER, "trainer", ranks), (ENGINES, "engines", engines)):
        yield _named("process_name", process, title)
        for row, (name, slices) in enumerate(rows.items()):
            yield _named("thread_name", process, name, row=row)
            for phase, step, start, end in slices:
                yield _slice(phase, process, row, start - zero_s, end - start, {"step": step})
    for at_s, count in _at_once(played):
        yield {
            "name": "turns being sampled",
            "ph": "C",
            "pid": ENGINES,
            "ts": _microseconds(at_s - zero_s),
            "args": {"turns": count},
        }
    yield _named("process_name", ROLLOUT, "rollout: episodes, from first to last token")
    lanes = Lanes()
    for episode in played:
        row, length = lanes.take(episode.start_s, episode.end_s), episode.end_s - episode.start_s
        yield _slice(episode.name, ROLLOUT, row, episode.start_s - zero_s, length, episode.args)
        for turn, start, end, about in episode.turns:
            yield _slice(f"turn {turn}", ROLLOUT, row, start - zero_s, end - start, about)


def _by_process(steps: Iterable[StepPhases]) -> tuple[_Rows, _Rows]:
    """Return the rows of trainer ranks, and those of engines."""
    ranks: _Rows = {"rank 0": []}
    engines: _Rows = {}
    for name, step, phases in _processes(steps):
        kind, _, number = name.partition("-")
        rows, row = (ranks, f"rank {number}") if kind == "trainer" else (engines, name)
        rows.setdefault(row, []).extend((phase, step, start, end) for phase, start, end in phases)
    return ranks, engines


def _processes(steps: Iterable[StepPhases]) -> Iterator[tuple[str, int, Sequence[Interval]]]:
    """Yield the phases of each process and step, with its name and the step."""
    for found in steps:
        for name, phases in {"trainer-0": found.trainer, **found.others}.items():
            yield name, found.step, phases


def _at_once(episodes: Iterable[Sampled]) -> Iterator[tuple[float, int]]:
    """Yield the number of turns that engines were sampling, each time that it changed."""
    turns = [turn for episode in episodes for turn in episode.turns]
    changes = sorted(
        [(start, 1) for _, start, _, _ in turns] + [(end, -1) for _, _, end, _ in turns]
    )
    for (at_s, _), count in zip(changes, accumulate(by for _, by in changes), strict=True):
        yield at_s, count


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _slice(
    name: str, process: int, row: int, start_s: float, length_s: float, args: Mapping[str, Any]
) -> Event:
    times = {"ts": _microseconds(start_s), "dur": _microseconds(length_s)}
    return {"name": name, "ph": "X", "pid": process, "tid": row, **times, "args": dict(args)}


def _named(kind: str, process: int, name: str, *, row: int = 0) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}


def write_timeline(
    run: Path, out: Path, *, on_progress: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """Write the trace of a run, living or not, to a new file; return its path and counts.

    Raises:
        ConfigError: no run there, its files cannot be read, or `out` exists.
    """
    config_of(run, f"arl timeline {run}")
    steps = list(read_phases(run))
    counts = {"episodes": 0, "steps": len(steps), "events": 0}

    def played() -> Iterator[Sampled]:
        with closing(EpisodeReader(run / "episodes.db")) as log:
            for episode_id in log.episode_ids(untrained=True):
                if found := Sampled.of(log.trajectory(episode_id)):
                    counts["episodes"] += 1
                    yield found
                on_progress(1)

    with new_file(out, argument=f"--out {out}") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for event in events(steps, played()):
            file.write((",\n" if counts["events"] else "") + json.dumps(event))
            counts["events"] += 1
        file.write("\n]}\n")
    return {**counts, "out": str(out)}


def timeline(run: InspectedRun, steps: str = "") -> dict[str, Any]:
    """Return the timeline of the steps `A-B`, or of the last ones. Blocking. Times are seconds
    since `zero_s` of the machine's monotonic clock. A process with overlapping slices has several
    tracks.

    Raises:
        HttpError: `steps` is not a range.
        ConfigError: a file cannot be read.
    """
    asked = _range(steps)
    found = list(read_phases(run.folder)) if (run.folder / PHASES).exists() else []
    low, high = asked or _last(found)
    shown = [phases for phases in found if low <= phases.step <= high]
    # A step that was trained again has several lines.
    rows = [*_process_rows(shown)]
    episodes = _episodes(run, low, high + _AHEAD)
    starts = [start for _, slices in rows for _, start, _ in slices]
    ends = [end for _, slices in rows for _, _, end in slices]
    if starts:  # keep those sampled while these steps were trained
        episodes = [it for it in episodes if it.end_s > min(starts) and it.start_s < max(ends)]
    zero_s = min(starts, default=min((it.start_s for it in episodes), default=0.0))
    return {
        "zero_s": zero_s,
        "steps": [low, high] if shown else None,
        "batches": _slices((_batch(phases) for phases in shown if phases.trainer), zero_s),
        "tracks": [
            *({"process": name, "slices": _slices(of, zero_s)} for name, of in rows),
            *_episode_tracks(episodes, zero_s),
        ],
        "at_once": [(_rounded(at_s - zero_s), count) for at_s, count in _at_once(episodes)],
    }


def _range(steps: str) -> tuple[int, int] | None:
    if not steps:
        return None
    first, _, last = steps.partition("-")
    try:
        low, high = int(first), int(last or first)
    except ValueError:
        raise wrong(f"steps={steps!r}: write A-B, two step numbers") from None
    if low > high:
        raise wrong(f"steps={steps!r}: the first is after the last")
    return low, high


def _last(found: Sequence[StepPhases]) -> tuple[int, int]:
    newest = max((phases.step for phases in found), default=0)
    return max(0, newest - LAST + 1), newest


def _process_rows(steps: Iterable[StepPhases]) -> Iterable[tuple[str, list[Interval]]]:
    rows: dict[str, list[Interval]] = {}
    for name, _, phases in _processes(steps):
        rows.setdefault(name, []).extend(phases)
    for name in sorted(rows, key=lambda name: (not name.startswith("trainer"), name)):
        kind, _, number = name.partition("-")
        yield (f"trainer rank {number}" if kind == "trainer" else name), rows[name]


def _batch(phases: StepPhases) -> Interval:
    starts, ends = [a for _, a, _ in phases.trainer], [b for _, _, b in phases.trainer]
    return (str(phases.step), min(starts), max(ends))


def _slices(intervals: Iterable[Interval], zero_s: float) -> list[tuple[float, float, str]]:
    return sorted((_rounded(a - zero_s), _rounded(b - zero_s), name) for name, a, b in intervals)


def _episodes(run: InspectedRun, low: int, high: int) -> list[Sampled]:
    """Return the episodes of these steps, and the newest ones that are not trained yet."""
    path: Path = run.folder / "episodes.db"
    if not path.exists():
        return []
    with closing(EpisodeReader(path)) as log:
        ids = log.trained_between(low, high)
        if len(ids) < MOST:
            limit = min(1000, MOST - len(ids))
            for status in ("open", "waiting"):
                newest = Query(limit=limit, same={"status": status})
                ids += [it["id"] for it in run.index.page(newest)["episodes"]]
        found = [Sampled.of(log.trajectory(id)) for id in dict.fromkeys(ids[:MOST])]
    return sorted((it for it in found if it), key=lambda it: it.start_s)


def _episode_tracks(episodes: Sequence[Sampled], zero_s: float) -> list[dict[str, Any]]:
    lanes, rows = Lanes(), dict[int, list[tuple[float, float, str]]]()
    for it in episodes:
        lane = lanes.take(it.start_s, it.end_s)
        slices = rows.setdefault(lane, [])
        for turn, start, end, _ in it.turns:
            text = f"{it.args['episode']} turn {turn}"
            slices.append((_rounded(start - zero_s), _rounded(end - zero_s), text))
    return [{"process": "episodes", "lane": n, "slices": rows[n]} for n in sorted(rows)]


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
