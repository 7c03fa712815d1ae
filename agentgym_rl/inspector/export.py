"""One file that shows runs without a server: the page, and the answers to what it asks.

In it `<script type="application/json" id="arl-data">` is base64 of gzip of JSON: `answers` by the
path of the route (`/api/runs/ID/episodes` has all summaries, filters and sorting are the page's),
and, by run, how many episodes' details were `left_out`.
"""

from __future__ import annotations

import base64
import gzip
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from agentgym_rl.core.errors import ConfigError
from agentgym_rl.runtime.atomic_file import new_file

from .app import PAGE
from .detail import episode_detail, group_detail
from .folders import InspectedRun
from .inline import inlined
from .query import MOST, Query
from .times import timeline


def write_html(
    runs: Sequence[InspectedRun],
    out: Path,
    *,
    episodes: int,
    on_progress: Callable[[int], None] = lambda _: None,
    page: Path = PAGE,
) -> dict[str, Any]:
    """Write the file; of each run the details of at most `episodes` episodes, evenly over it, and
    of the groups they are of. What is in it.

    Raises:
        ConfigError: there are no runs, one cannot be read, or `out` is there already.
    """
    if not runs:
        raise ConfigError("no runs here to write: pass runs, or folders with runs in them")
    answers: dict[str, Any] = {"/api/runs": {"runs": [run.summary() for run in runs]}}
    left_out: dict[str, int] = {}
    for run in runs:
        found, left_out[run.id] = _of(run, episodes, on_progress)
        answers |= found
    data = {"made_s": time.time(), "answers": answers, "left_out": left_out}
    packed = base64.b64encode(gzip.compress(msgspec.json.encode(data), mtime=0)).decode()
    text = inlined(page, data=packed)
    with new_file(out, said=f"--html {out}") as file:
        file.write(text)
    return {
        "out": str(out),
        "runs": len(runs),
        "episodes": sum("/episodes/" in path for path in answers),
        "left_out": sum(left_out.values()),
        "size_bytes": len(text.encode()),
    }


def _of(
    run: InspectedRun, most: int, on_progress: Callable[[int], None]
) -> tuple[dict[str, Any], int]:
    while run.index.read_more():
        pass
    base = f"/api/runs/{quote(run.id, safe='')}"
    summaries = list(_summaries(run))
    chosen = _evenly(summaries, most)
    answers: dict[str, Any] = {
        f"{base}/config": {"toml": run.config_text()},
        f"{base}/metrics": run.metrics(),
        f"{base}/timeline": timeline(run),
        f"{base}/facets": run.index.facets(),
        f"{base}/episodes": {"total": len(summaries), "episodes": summaries, "complete": True},
    }
    for summary in chosen:
        path = f"{base}/episodes/{quote(summary['id'], safe='')}"
        answers[path] = episode_detail(run, summary["id"])
        on_progress(1)
    for group in dict.fromkeys(summary["group"] for summary in chosen):
        answers[f"{base}/groups/{quote(group, safe='')}"] = group_detail(run, group)
    return answers, len(summaries) - len(chosen)


def _summaries(run: InspectedRun) -> Iterable[dict[str, Any]]:
    offset = 0
    while found := run.index.page(Query(offset=offset, limit=MOST))["episodes"]:
        yield from found
        offset += len(found)


def _evenly(found: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most so many, whole groups next to each other where they can be."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for summary in found:
        groups.setdefault(summary["group"], []).append(summary)
    size = max((len(members) for members in groups.values()), default=1)
    names, count = list(groups), max(1, most // size)
    if len(found) > most:
        names = [names[i * len(names) // count] for i in range(min(count, len(names)))]
    return [summary for name in names for summary in groups[name]][:most]
