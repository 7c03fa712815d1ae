"""A run's folder to a trace file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from agentgym_rl.episode_reader import EpisodeReader
from agentgym_rl.new_file import new_file
from agentgym_rl.run_dir import config_of

from .phases import read_phases
from .trace import Sampled, events


def write_timeline(
    run: Path, out: Path, *, on_progress: Callable[[int], None] = lambda _: None
) -> dict[str, Any]:
    """Write the trace of a run, living or not, to a new file; returns what is in it.

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

    with new_file(out, said=f"--out {out}") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for event in events(steps, played()):
            file.write((",\n" if counts["events"] else "") + json.dumps(event))
            counts["events"] += 1
        file.write("\n]}\n")
    return {**counts, "out": str(out)}
