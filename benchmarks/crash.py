"""Kills of any process at any moment: the surviving weights must have been trained exactly once on
each batch.

Runs of the main job are killed (SIGKILL, at random moments) and resumed until they are finished:
the controller with its rollout worker, a trainer rank, an engine. `arl ledger` judges every run
after every kill. In synchronous mode with a deterministic engine the last weights must be, bit for
bit, those of uninterrupted runs. In asynchronous mode with learning rate 0, where every episode
comes from the same policy, lengths of trained episodes must be distributed as in an uninterrupted
run; it resumes with one and with two trainer ranks in turn.

ARL_BENCH_KILLS (default 50) kills in all, as far as ARL_BENCH_BUDGET_S allows (all of it takes
twenty minutes on two idle cores); "resume_s" is from the start of `arl train --resume` to the
moment at which rollout and training go on.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from arl_audit.exactly_once import audit_ledger

from ._common import hardware, say, versions
from ._toy import sized

KILLS = int(os.environ.get("ARL_BENCH_KILLS", sized("50", toy="2")))
STEPS = int(os.environ.get("ARL_BENCH_STEPS", sized("40", toy="8")))
BUDGET_S = float(os.environ.get("ARL_BENCH_BUDGET_S", "inf"))
"""The seconds after which no process is killed any more, and the present run is finished."""
GOAL = (
    "no fault in any ledger; synchronous: final weights equal those of two uninterrupted runs, bit "
    "for bit; asynchronous: lengths of trained episodes as without kills (Kolmogorov-Smirnov "
    "p > 0.01); resume <= 10 s"
)
RESUME_GOAL_S = 10.0
VICTIMS = ("controller", "trainer", "engine")
_SMALL = (
    *("train", "--env=math", "--agent=react", "--eval.num_tasks=0", "--logging.plot=false"),
    *("--logging.progress=plain", "--rollout.groups_per_batch=2", "--rollout.group_size=4"),
    *("--trainer.checkpoint_every=3", "--engine.max_restarts=1000"),
    "--trainer.max_restarts=0",  # the run ends, and is resumed: faults.py has the other way
)
MODES = {
    "synchronous": ("--rollout.max_staleness=0", "--engine.deterministic=true"),
    "asynchronous": ("--rollout.max_staleness=2", "--trainer.learning_rate=0"),
}
_LIFE_S = (0.3, 6.0)
"""The bounds of the random time, in seconds, from a run's readiness to a kill."""
_DEADLINE_S = 600.0

Row = dict[str, Any]


def run(*, kills: int = KILLS, steps: int = STEPS, seed: int = 1) -> dict[str, Any]:
    """Run the benchmark; `met` of the result is whether all goals hold."""
    draw = random.Random(seed)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as folder:
        root = Path(folder)
        for mode in MODES:
            plain = [_Life(root / f"{mode}-{n}", mode, steps) for n in range(2)]
            for life in plain[: 2 if mode == "synchronous" else 1]:
                life.start()
                life.finish()
                rows.append(life.row(f"{mode}, uninterrupted"))
            rows += _crashed(root, mode, steps, kills // len(MODES), plain[0], draw)
    checks = _checks(rows, kills)
    for name, holds in checks.items():
        say(f"{'holds' if holds else 'FAILS'}: {name}")
    return {
        "name": "crash",
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
        "ratios": {},
        "goal": GOAL,
        "checks": checks,
        "met": all(checks.values()),
    }


def _crashed(
    root: Path, mode: str, steps: int, kills: int, plain: _Life, draw: random.Random
) -> list[Row]:
    """Start and kill runs until the number of kills is reached."""
    rows: list[Row] = []
    end = time.monotonic() + BUDGET_S / len(MODES)
    while kills > 0 and time.monotonic() < end:
        life = _Life(root / f"{mode}-crashed-{len(rows)}", mode, steps)
        life.start()
        while life.killed.total() < kills and time.monotonic() < end and life.kill_once(draw):
            pass
        kills -= life.killed.total()
        life.finish()
        row = life.row(f"{mode}, killed")
        if mode == "asynchronous":
            row["lengths_p"] = _same_distribution(plain.lengths(), life.lengths())
        rows.append(row)
    return rows


class _Life:
    """A run, over all its incarnations."""

    def __init__(self, folder: Path, mode: str, steps: int) -> None:
        self.folder, self.mode = folder, mode
        self.flags = [*_SMALL, *MODES[mode], f"--steps={steps}", f"--run={folder}"]
        self.killed: Counter[str] = Counter()
        self.resume_s: list[float] = []
        self.faults: list[str] = []
        self.seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._launch(self.flags)

    def resume(self) -> None:
        """Resume the run; measure the time until rollout and training continue."""
        ranks = 1 + len(self.resume_s) % 2 if self.mode == "asynchronous" else 1
        begun = time.time()
        self._launch(
            ["train", "--resume", str(self.folder), f"--trainer.num_ranks={ranks}"],
        )
        ready = self._wait_ready(begun)
        if ready:
            self.resume_s.append(ready - begun)

    def kill_once(self, draw: random.Random) -> bool:
        """Kill a random process at a random moment, and resume the run; return False if the run

        was finished. Nothing is killed or counted if the drawn process does not exist.
        """
        if not self._wait_ready(0.0):
            return False
        time.sleep(draw.uniform(*_LIFE_S))
        victim = draw.choice(VICTIMS)
        assert self._process is not None
        found = children_of(self._process.pid, victim) if victim != "controller" else None
        pids = [self._process.pid] if found is None else found
        if self._process.poll() is not None or not pids:
            return self._process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(pids), signal.SIGKILL)
        self.killed[victim] += 1
        say(f"{self.folder.name}: {victim} killed; {dict(self.killed)}")
        if victim != "engine":  # that one is started again by the run itself
            self._process.wait(60)
            self._audit()
            if not self._is_finished():
                self.resume()
        return True

    def finish(self) -> None:
        """Resume the run until its end."""
        assert self._process is not None
        code = self._process.wait(_DEADLINE_S)
        while code != 0 and not self._is_finished():  # killed at its very end
            self.resume()
            code = self._process.wait(_DEADLINE_S)
        self._audit()

    def row(self, system: str) -> Row:
        report = audit_ledger(self.folder)
        return {
            "system": system,
            "kills": dict(self.killed),
            "batches": report["batches"],
            "batches_trained_again": report["batches_trained_again"],
            "of_these_bit_for_bit": report["of_these_bit_for_bit"],
            "faults": self.faults,
            "finished": report["finished"],
            "resume_s": [round(seconds, 1) for seconds in self.resume_s],
            "parameters": self._ask("SELECT parameters FROM steps ORDER BY step DESC")[0][0],
            "mean_tokens": sum(self.lengths()) / len(self.lengths()),
            "load": os.getloadavg()[1],
        }

    def lengths(self) -> list[int]:
        """Return the lengths of the trained episodes, in tokens."""
        query = (
            "SELECT num_tokens FROM trajectories JOIN groups g USING (group_id) "
            "WHERE g.status IN ('leased', 'consumed')"
        )
        return [length for (length,) in self._ask(query)]

    def _launch(self, flags: Sequence[str]) -> None:
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "agentgym_rl", *flags], stdout=output, stderr=output
            )

    def _wait_ready(self, since: float) -> float | None:
        """Return the time at which the present incarnation began to train; None if the process
        ended before."""
        assert self._process is not None
        end = time.monotonic() + _DEADLINE_S
        query = "SELECT started_s, ready_s FROM incarnations ORDER BY incarnation DESC LIMIT 1"
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(sqlite3.Error):  # there is no log yet
                for started, ready in self._ask(query):
                    if ready is not None and started >= since:
                        return ready
            time.sleep(0.05)
        return None

    def _is_finished(self) -> bool:
        done = audit_ledger(self.folder)["finished"]
        return done and (self.folder / "export").exists()

    def _audit(self) -> None:
        self.faults += audit_ledger(self.folder)["faults"]

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        file = self.folder / "episodes.db"
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as log:
            return log.execute(query).fetchall()


def children_of(pid: int, command: str) -> list[int]:
    """Return the processes that `pid`, or its fork server, started as `arl COMMAND`."""
    near = list(processes_of(pid))
    below = [found for child, _ in near for found in processes_of(child)]
    return [child for child, line in near + below if f" {command} " in line]


def processes_of(parent: int) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                yield int(entry.name), (entry / "cmdline").read_text().replace("\0", " ")


def _same_distribution(one: Sequence[int], other: Sequence[int]) -> float:
    """Return p of the two-sample Kolmogorov-Smirnov test (asymptotic; conservative, as lengths
    tie)."""
    places = sorted({*one, *other})
    gap = max(
        abs(sum(x <= p for x in one) / len(one) - sum(x <= p for x in other) / len(other))
        for p in places
    )
    scale = (len(one) * len(other) / (len(one) + len(other))) ** 0.5 * gap
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * (k * scale) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, sum(terms))) if scale > 0.2 else 1.0


def _checks(rows: Sequence[Row], kills: int) -> dict[str, bool]:
    synchronous = [row for row in rows if row["system"].startswith("synchronous")]
    plain = [row for row in synchronous if not row["kills"]]
    resumes = [seconds for row in rows for seconds in row["resume_s"]]
    done = sum(sum(row["kills"].values()) for row in rows)
    return {
        f"{done} kills, of {kills} or more": done >= kills // len(MODES) * len(MODES),
        "every run is finished, and no ledger has a fault": all(
            row["finished"] and not row["faults"] for row in rows
        ),
        "two uninterrupted runs agree": len({row["parameters"] for row in plain}) == 1,
        "killed runs come to the same weights": len({r["parameters"] for r in synchronous}) == 1,
        "lengths of trained episodes are unbiased": all(
            row.get("lengths_p", 1.0) > 0.01 for row in rows
        ),
        f"resume within {RESUME_GOAL_S:g} s (median "
        f"{sorted(resumes)[len(resumes) // 2] if resumes else 0:.1f}, longest "
        f"{max(resumes, default=0):.1f})": max(resumes, default=0) <= RESUME_GOAL_S,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=2) + "\n")
