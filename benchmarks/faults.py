"""Faults of every part of a run: the time to their detection, and their cost.

Each row is one fault in one small run of the math job (two embedded engines, asynchronous): a
process is killed, stopped (SIGSTOP), starved of memory or of disk, or made slow; a tool, or the
environment, never returns. `arl ledger` finds lost or repeated training. "detected_s" is the time
from the fault to the run's first message about it (or its end), "full_speed_s" that to the first
new batch trained after it with every part working again.

ARL_BENCH_REPEATS (default 5) rows of each fault, ARL_BENCH_FAULTS (names, with commas) only these.
With ARL_BENCH_ROWS=FILE each row is kept there, and kept rows are not measured again: the benchmark
takes an hour on two idle cores.

ARL_BENCH_FAULTS=ray is for a run on a Ray cluster of four nodes and a head, each with a network
namespace of its own, two engines and two rollout workers: processes, their actors and complete
nodes are killed, frozen, or cut off. These runs are interrupted once they have recovered, and do
not check tokens. It needs root, iproute2 and Ray.

ARL_BENCH_FAULTS=none is for false alarms: nothing happens to the main job (two engines, two ranks)
while eight busy processes take the machine's cores, for ARL_BENCH_LOAD_S seconds (default 600).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ._common import hardware, say, versions
from ._faults import FAULTS, NONE
from ._faulty import Fault, FaultyRun, unmeasured
from ._kept import read_rows, rows_file, write_atomically
from ._ray_faulty import FAULTS as RAY_FAULTS
from ._ray_faulty import RayRun
from ._toy import sized

_TOYS = ["engine killed", "tool never returns"]
"""The faults of a dry run."""
REPEATS = int(os.environ.get("ARL_BENCH_REPEATS", sized("5", toy="1")))
DETECTED_S = 5.0
GOAL = (
    f"every fault detected within {DETECTED_S:g} s, no slow part taken for a lost one, every run "
    "finished, no fault in any ledger (nothing lost, nothing trained twice), no episode trained "
    "that infrastructure had failed"
)

Row = dict[str, Any]


def run(*, repeats: int = REPEATS, names: Sequence[str] = ()) -> dict[str, Any]:
    """Run the benchmark; `met` of the result is whether all goals hold."""
    chosen = names or [n for n in os.environ.get("ARL_BENCH_FAULTS", "").split(",") if n]
    everything = {**FAULTS, **RAY_FAULTS}
    if unknown := set(chosen) - everything.keys() - {"ray"}:
        raise SystemExit(f"no faults {sorted(unknown)}; there are ray, {', '.join(everything)}")
    chosen = chosen or sized([name for name in FAULTS if name != NONE], toy=_TOYS)
    if "ray" in chosen:
        chosen = [*chosen, *RAY_FAULTS]
    faults = {name: fault for name, fault in everything.items() if name in chosen}
    kept = rows_file()
    rows = read_rows(kept)
    for number in range(repeats):
        for name, fault in faults.items():
            if any((row["fault"], row["number"]) == (name, number) for row in rows):
                continue
            row = {"system": name, "fault": name, "number": number} | _measure(fault)
            say(json.dumps(row))
            rows.append(row)
            if kept:
                write_atomically(kept, "".join(json.dumps(row) + "\n" for row in rows))
    rows = [row for row in rows if row["fault"] in faults and row["number"] < repeats]
    checks = _checks(rows, faults)
    for name, holds in checks.items():
        say(f"{'holds' if holds else 'FAILS'}: {name}")
    return {
        "name": "faults",
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
        "table": table(rows),
        "ratios": {},
        "goal": GOAL,
        "checks": checks,
        "met": all(checks.values()),
    }


def table(rows: Sequence[Row]) -> list[Row]:
    """Return a table with one line for each fault: the median and the worst of its costs."""
    lines: list[Row] = []
    for name in dict.fromkeys(row["fault"] for row in rows):
        of = [row for row in rows if row["fault"] == name]
        lines.append(
            {
                "fault": name,
                "runs": len(of),
                **_spread(of, "detected_s"),
                **_spread(of, "full_speed_s"),
                "batches_trained_again": sum(row["batches_trained_again"] for row in of),
                "of_these_bit_for_bit": sum(row["of_these_bit_for_bit"] for row in of),
                "tokens_sampled_again": sum(row["tokens_sampled_again"] or 0 for row in of),
                "groups_lost": sum(row["groups_lost"] for row in of),
                "duplicated": sum(row["duplicated"] for row in of),
                "poisoned_rewards": sum(row["poisoned_rewards"] for row in of),
                "false_alarms": sum(row["false_alarms"] for row in of),
            }
        )
    return lines


def _measure(fault: Fault) -> Row:
    """Measure one fault in one run; the row has `error` if the run failed."""
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as folder:
        faulty = (RayRun if fault.on_ray else FaultyRun)(Path(folder) / "run", fault)
        try:
            return faulty.measure() | {"load": os.getloadavg()[0]}
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            return unmeasured() | {"error": str(error)[-2000:], "load": os.getloadavg()[0]}
        finally:
            faulty.close()


def _spread(rows: Sequence[Row], key: str) -> dict[str, float | None]:
    found = [row[key] for row in rows if row[key] is not None]
    return {
        f"{key}_median": median(found) if found else None,
        f"{key}_max": max(found, default=None),
    }


def _checks(rows: Sequence[Row], faults: Mapping[str, Fault]) -> dict[str, bool]:
    late = [
        row
        for row in rows
        if faults[row["fault"]].is_noticed
        and (row["detected_s"] is None or row["detected_s"] > DETECTED_S)
    ]
    worst = max((row["detected_s"] or 0.0 for row in rows), default=0.0)
    return {
        f"{len(rows)} faults, every run finished": all("error" not in row for row in rows),
        f"detected within {DETECTED_S:g} s (longest {worst:.1f})": not late,
        "what is slow is not taken for lost": not any(row["false_alarms"] for row in rows),
        "no ledger has a fault": not any(row["faults"] for row in rows),
        "nothing trained twice": not any(row["duplicated"] for row in rows),
        "no poisoned reward": not any(row["poisoned_rewards"] for row in rows),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
