"""The audit of exactly-once training: every group of a run must be trained once. The module reads
the files of a run (episodes.db, metrics.jsonl, the manifests of its checkpoints) and shares no code
with the modules that write them.

A run has incarnations: each begins with the weights of a checkpoint, or those of the model. The
weights that survive have the steps of the last incarnation, the steps that the incarnation before
had done when that checkpoint was made, and so on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym_rl.config import LaterVersion, check_format
from agentgym_rl.core import ConfigError, parse_json, parse_toml

_MOST_NAMES = 8
"""The number of names that a fault lists."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A batch, as the trainer reported it."""

    incarnation: int
    group_ids: tuple[str, ...]
    parameters: str


@dataclass
class Ledger:
    """The facts read from a run, and the faults found in them."""

    run: Path
    groups_per_batch: int
    steps: int
    """The number of batches the run was configured to train."""
    trained: dict[int, Trained] = field(default_factory=dict[int, Trained])
    """The batches that the surviving weights have, by step."""
    again: int = 0
    """The number of batches that were trained again because their first weights were lost."""
    exact: int = 0
    """The number of batches trained again that gave the same weights bit for bit."""
    incarnations: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    missing: list[int] = field(default_factory=list)
    """The indices of tasks before the last played one whose groups are not in the log: in flight,
    of weight 0, or skipped."""
    drawn: frozenset[int] = frozenset()
    """The indices of the tasks that a curriculum took."""
    passed_over: int = 0
    """The number of tasks before the last played one that the curriculum passed over."""
    has_curriculum: bool = False
    faults: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return len(self.trained) >= self.steps

    def report(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "run": str(self.run),
            "passed": not self.faults,
            "faults": self.faults,
            "finished": self.finished,
            "batches": len(self.trained),
            "incarnations": self.incarnations,
            "batches_trained_again": self.again,
            "of_these_bit_for_bit": self.exact,
            "groups": dict(self.statuses),
            "groups_trained": sum(len(batch.group_ids) for batch in self.trained.values()),
            "not_in_the_log": len(self.missing),
            "passed_over": self.passed_over,
        }


def audit_ledger(run: Path) -> dict[str, Any]:
    """Return the report on a run, living or not; `faults` has a sentence for each fault.

    Raises:
        ConfigError: the folder holds no run, or none that can be read.
    """
    try:
        config = parse_toml((run / "config.toml").read_text(encoding="utf-8"))
        check_format(config.get("format", 0), run / "config.toml")
        ledger = Ledger(run, config["rollout"]["groups_per_batch"], config["steps"])
        path = run / "episodes.db"
        mode = "mode=ro" if path.with_name("episodes.db-wal").exists() else "immutable=1"
        url = f"{path.absolute().as_uri()}?{mode}"
        with contextlib.closing(sqlite3.connect(url, uri=True)) as log:
            check_format(log.execute("PRAGMA user_version").fetchone()[0], path)
            log.execute("BEGIN")  # a consistent snapshot of a living run
            _read_steps(ledger, log)
            groups = _read_groups(log)
            ledger.has_curriculum = bool(config["rollout"].get("curriculum"))
            if ledger.has_curriculum:
                found = log.execute("SELECT task_index FROM draws")
                ledger.drawn = frozenset(index for (index,) in found)
    except LaterVersion:
        raise
    except (OSError, sqlite3.Error, KeyError, ValueError) as error:
        raise ConfigError(f"{run}: no run whose ledger can be read: {error!r}") from error
    ledger.statuses = Counter(group["status"] for group in groups.values())
    _check_batches(ledger, groups)
    _check_groups(ledger, groups)
    if not (run / "serve.json").exists():  # other programs choose their tasks themselves
        _check_cursor(ledger, groups)
    _check_checkpoints(ledger, groups)
    _check_metrics(ledger)
    return ledger.report()


def _read_steps(ledger: Ledger, log: sqlite3.Connection) -> None:
    """Follow the incarnations; each may only continue from batches that the log has."""
    begun = log.execute("SELECT incarnation, step FROM incarnations ORDER BY 1").fetchall()
    ledger.incarnations = len(begun)
    if [number for number, _ in begun] != list(range(len(begun))):
        ledger.faults.append(f"incarnations are not numbered from 0: {[n for n, _ in begun]}")
    for number, start in begun:
        for step in range(start):
            if step not in ledger.trained:
                ledger.faults.append(
                    f"incarnation {number} began with the weights of {start} batches, and the log "
                    f"has no batch {step}"
                )
        lost = {step: batch for step, batch in ledger.trained.items() if step >= start}
        ledger.trained = {step: b for step, b in ledger.trained.items() if step < start}
        query = "SELECT step, group_ids, parameters FROM steps WHERE incarnation = ? ORDER BY 1"
        for step, names, parameters in log.execute(query, (number,)):
            batch = Trained(number, tuple(parse_json(names)), parameters)
            ledger.trained[step] = batch
            if step in lost:
                _check_again(ledger, step, lost[step], batch)


def _check_again(ledger: Ledger, step: int, before: Trained, now: Trained) -> None:
    ledger.again += 1
    ledger.exact += before.parameters == now.parameters
    if set(before.group_ids) != set(now.group_ids):
        ledger.faults.append(
            f"batch {step} was trained again in incarnation {now.incarnation} on other groups: "
            f"{_few(set(before.group_ids) ^ set(now.group_ids))} differ"
        )


def _read_groups(log: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    names = ["status", "step", "task_index", "members"]
    rows = log.execute(f"SELECT group_id, {', '.join(names)} FROM groups WHERE task_index >= 0")
    found: dict[str, dict[str, Any]] = {}
    for name, *values in rows.fetchall():
        found[name] = dict(zip(names, values, strict=True))
    episodes: dict[str, set[str]] = {}
    for group_id, episode_id in log.execute("SELECT group_id, episode_id FROM trajectories"):
        episodes.setdefault(group_id, set()).add(episode_id)
    for name, group in found.items():
        group["whole"] = set(parse_json(group["members"])) <= episodes.get(name, set())
    return found


def _check_batches(ledger: Ledger, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the surviving weights have each batch once, with the configured number of groups,
    and no group twice."""
    if sorted(ledger.trained) != list(range(len(ledger.trained))):
        ledger.faults.append(f"batches are missing: there are {_few(map(str, ledger.trained))}")
    seen: dict[str, int] = {}
    for step, batch in sorted(ledger.trained.items()):
        if len(batch.group_ids) != ledger.groups_per_batch:
            ledger.faults.append(
                f"batch {step} has {len(batch.group_ids)} groups, not {ledger.groups_per_batch}"
            )
        for name in batch.group_ids:
            if name in seen:
                ledger.faults.append(f"group {name} was trained twice: {seen[name]} and {step}")
            seen[name] = step
            group = groups.get(name)
            if group is None or not group["whole"]:
                ledger.faults.append(f"group {name} of batch {step} is not whole in the log")
            elif group["step"] != step or group["status"] not in ("leased", "consumed"):
                ledger.faults.append(
                    f"group {name} was trained in batch {step}, and the log says: "
                    f"{group['status']}, step {group['step']}"
                )


def _check_groups(ledger: Ledger, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that each group given to a batch is in it, and no group is left over at the end.

    Batches that the surviving weights do not have yet (because of a crash, or of a second one while
    they were trained again) must be complete, and consecutive.
    """
    last = len(ledger.trained)
    given = Counter(g["step"] for g in groups.values() if g["step"] is not None)
    to_come = sorted(step for step in given if step >= last)
    if to_come != list(range(last, last + len(to_come))):
        ledger.faults.append(f"of the batches from {last} on, only {to_come} have groups")
    for step in to_come:
        if given[step] != ledger.groups_per_batch:
            ledger.faults.append(f"batch {step} was given {given[step]} groups")
    for name, group in groups.items():
        step, status = group["step"], group["status"]
        if status in ("leased", "consumed"):
            batch = ledger.trained.get(step)
            if batch is None and ledger.finished:
                ledger.faults.append(f"group {name} was given to batch {step}, which is not there")
            elif batch is not None and name not in batch.group_ids:
                ledger.faults.append(f"group {name} was given to batch {step}, and not trained")
        elif status == "waiting" and ledger.finished:
            ledger.faults.append(f"group {name} waits to be trained, and the run is finished")


def _check_cursor(ledger: Ledger, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that each task was played once, and that only a curriculum skipped tasks, whose log has
    the tasks it took."""
    places = Counter(group["task_index"] for group in groups.values())
    twice = [str(index) for index, count in places.items() if count > 1]
    if twice:
        ledger.faults.append(f"tasks were played twice: {_few(twice)}")
    due = list(range(max(places, default=-1) + 1))
    if ledger.has_curriculum:
        due = [index for index in due if index in ledger.drawn]
        ledger.passed_over = max(places, default=-1) + 1 - len(due)
        untaken = _few(str(index) for index in places if index not in ledger.drawn)
        if untaken:
            ledger.faults.append(f"tasks were played that the curriculum passed over: {untaken}")
    ledger.missing = [i for i in due if i not in places]
    last = _metrics(ledger.run)[-1:]
    without_weight = int((last[0].get("rollout/weight_0") or 0) if last else 0)
    if ledger.finished and len(ledger.missing) > without_weight:
        ledger.faults.append(
            f"tasks were skipped: {_few(map(str, ledger.missing))} "
            f"({without_weight} of these have weight 0)"
        )


def _check_checkpoints(ledger: Ledger, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the groups that the weights have seen, by the trainer's record, with those that the
    trainer was given, by the log."""
    given: dict[int, set[str]] = {}
    for name, group in groups.items():
        if group["step"] is not None:
            given.setdefault(group["step"], set()).add(name)
    for path in sorted((ledger.run / "checkpoints").glob("step-*/manifest.json")):
        try:
            manifest = parse_json(path.read_text())
        except ValueError:
            continue  # cut short: no checkpoint, and resuming passes it over
        chain = ""
        for step in range(manifest["step"]):
            said = json.dumps([chain, step, sorted(given.get(step, ()))])
            chain = hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
        where = f"checkpoint {path.parent.name}"
        if chain != manifest["lineage"]:
            ledger.faults.append(f"{where} was trained on other groups than the log gave it")
        last = ledger.trained.get(manifest["step"] - 1)
        if last is None:
            ledger.faults.append(f"{where}: the log does not have its last batch")
        elif last.parameters != manifest["parameters"]:
            ledger.faults.append(f"{where} has other weights than were reported")


def _check_metrics(ledger: Ledger) -> None:
    steps = [row["step"] for row in _metrics(ledger.run)]
    done = len(ledger.trained)
    # The line is written right after the log has the step: a crash may fall between.
    if steps != list(range(len(steps))) or not done - 1 <= len(steps) <= done:
        ledger.faults.append(f"metrics.jsonl has steps {_few(map(str, steps))} of {done}")
    elif ledger.finished and len(steps) != done:
        ledger.faults.append(f"metrics.jsonl has {len(steps)} steps, of {done}")


def _metrics(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found: list[dict[str, Any]] = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line, cut short by a crash
            found.append(parse_json(line))
    return found


def _few(names: Iterable[str]) -> str:
    listed = sorted(names, key=lambda name: (len(name), name))
    rest = f" and {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return ", ".join(listed[:_MOST_NAMES]) + rest
