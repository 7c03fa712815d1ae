"""The data of the page's timeline: processes, their slices, and the number of concurrent turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any

from agentgym_rl.storage.episode_reader import EpisodeReader
from agentgym_rl.storage.phases import NAME, Interval, StepPhases, read_phases

from .folders import InspectedRun
from .query import Query, wrong
from .timeline import Lanes, Sampled

LAST = 10
"""The number of steps that are shown by default."""
_AHEAD = 4
"""The number of later steps whose episodes are included: they were played meanwhile."""
MOST = 2000
"""The largest number of episodes that are read."""


def timeline(run: InspectedRun, steps: str = "") -> dict[str, Any]:
    """Return the timeline of the steps `A-B`, or of the last ones. Blocking. Times are seconds
    since `zero_s` of the machine's monotonic clock. A process with overlapping slices has several
    tracks.

    Raises:
        Refusal: `steps` is no range.
        ConfigError: a file cannot be read.
    """
    asked = _range(steps)
    found = list(read_phases(run.folder)) if (run.folder / NAME).exists() else []
    low, high = asked or _last(found)
    shown = [phases for phases in found if low <= phases.step <= high]
    # A step that was trained again has several lines.
    rows = [*_rows(shown)]
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
        "at_once": _at_once(episodes, zero_s),
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


def _rows(steps: Iterable[StepPhases]) -> Iterable[tuple[str, list[Interval]]]:
    rows: dict[str, list[Interval]] = {}
    for found in steps:
        for name, phases in {"trainer-0": found.trainer, **found.others}.items():
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
            newest = Query(limit=min(1000, MOST - len(ids)), same={"status": "open"})
            waiting = Query(limit=min(1000, MOST - len(ids)), same={"status": "waiting"})
            for query in (newest, waiting):
                ids += [it["id"] for it in run.index.page(query)["episodes"]]
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


def _at_once(episodes: Sequence[Sampled], zero_s: float) -> list[tuple[float, int]]:
    turns = [turn for it in episodes for turn in it.turns]
    changes = sorted([(a, 1) for _, a, _, _ in turns] + [(b, -1) for _, _, b, _ in turns])
    counts = accumulate(by for _, by in changes)
    return [(_rounded(at - zero_s), n) for (at, _), n in zip(changes, counts, strict=True)]


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
