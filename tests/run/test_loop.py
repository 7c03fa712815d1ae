"""The written-out training loop: short, equal to its page, asynchronous within the bound, exact."""

import ast
import asyncio
import difflib
import importlib.util
import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from arl_audit.exactly_once import audit_ledger

import agentgym_rl
from agentgym_rl import Buffer, Rollout, Trainer, runs
from agentgym_rl.core import ConfigError, Group
from agentgym_rl.storage import EpisodeLog
from tests.docs.blocks import ROOT, blocks
from tests.kit.cases import cases
from tests.kit.groups import make_group

LOOP = ROOT / "examples" / "loop.py"
PAGE = "docs/loop.md"
STEPS = 4
SMALL = {
    "algo.entropy_coef": 1e-9,  # so that rows without an advantage are computed, too
    "steps": STEPS,
    "rollout.max_staleness": 1,
    "rollout.groups_per_batch": 2,
    "rollout.group_size": 4,
    "trainer.num_minibatches": 1,
    "eval.num_tasks": 8,
}


VARIATIONS = {
    "loop_curriculum": None,  # on the page alone
    "loop_turn_rewards": ROOT / "examples" / "loop_turn_rewards.py",
    "loop_replay": ROOT / "examples" / "loop_replay.py",
}
MOST_LINES, MOST_CHANGED = 120, 20


def applied(diff: str, text: str) -> str:
    """Return the text after a unified diff; the context has to fit, not the line numbers."""
    head, *hunks = re.split(r"^@@ .*\n", diff, flags=re.MULTILINE)
    assert head == "--- examples/loop.py\n+++ examples/loop.py\n"
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(x[1:] for x in lines if x[0] in kept) for kept in (" -", " +"))
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def variation(name: str) -> str:
    """Return the text of a variation: its file, or the script after the diff on the page."""
    if file := VARIATIONS[name]:
        return file.read_text()
    (diff,) = blocks("diff", PAGE)
    return applied(diff.text, LOOP.read_text())


def test_the_script_is_short_and_imports_only_the_public_names_of_the_package():
    assert len(LOOP.read_text().splitlines()) <= MOST_LINES
    tree = ast.parse(LOOP.read_text())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert [node.module for node in imports] == ["agentgym_rl"]
    assert {alias.name for node in imports for alias in node.names} <= set(agentgym_rl.__all__)
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert modules <= sys.stdlib_module_names
    names = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    assert [name for name in names if name.startswith("_")] == []


def test_the_page_shows_the_script_part_by_part():
    shown = [block.text for block in blocks("python", PAGE)]
    assert "\n\n".join(shown) == LOOP.read_text()


@cases("name", VARIATIONS)
def test_a_variation_is_small(name):
    script, varied = LOOP.read_text().splitlines(), variation(name).splitlines()
    changed = [x for x in difflib.ndiff(script, varied) if x[0] in "+-"]
    assert 0 < len(changed) <= MOST_CHANGED


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *VARIATIONS])
def test_the_loop_trains_within_the_staleness_bound(warm, tmp_path, name):
    script = tmp_path / "loop.py"
    script.write_text(variation(name) if name else LOOP.read_text())
    run = tmp_path / "run"
    before, after = asyncio.run(imported(script).main(SMALL | {"run": str(run)}))
    # The engine answers with the last published weights, and it began with the first ones.
    assert (before.versions, after.versions) == ((0,), (STEPS,))
    with closing(sqlite3.connect(run / "episodes.db")) as db:
        assert [v for (v,) in db.execute("SELECT version FROM versions")] == [1, 2, 3, 4]
    rows = metrics(run)
    assert [row["step"] for row in rows] == list(range(STEPS))
    # Batch 1 was played while batch 0 was trained.
    assert [row["staleness/max"] for row in rows][:2] == [0, 1]
    assert any(row["grad_norm"] > 0 for row in rows)
    # The tokens that train are those that the engine sampled, under the weights of their version.
    assert rows[0]["mismatch/mean_abs/staleness_0"] < 1e-5
    with closing(EpisodeLog(run / "episodes.db")) as log:
        for step in range(STEPS):
            episodes = log.trajectories(step=step)
            assert len(episodes) == 8
            oldest = [e.oldest_version for e in episodes if e.oldest_version is not None]
            assert min(oldest) >= step - 1
            assert max(v for e in episodes for v in e.trained_versions) <= step
            scores = {reward for e in episodes for reward in e.credit.turn_rewards}
            assert scores <= {0.0, 0.2}
            assert bool(scores) == (name == "loop_turn_rewards")


def metrics(run: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def imported(file: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location("loop_example", file)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


EXACT = SMALL | {
    "steps": 4,
    "rollout.group_size": 2,
    "rollout.max_tokens": 24,
    "rollout.max_staleness": 0,
    "engine.deterministic": True,
    "trainer.checkpoint_every": 2,
    "eval.num_tasks": 2,
}


def script(folder: Path, *, dies: bool = False) -> Path:
    """Return the script; one that `dies` kills its process when it has trained the last batch."""
    text, trained = LOOP.read_text(), "report = await trainer.train(step, groups, dropped="
    (line,) = [line for line in text.splitlines() if trained in line]
    kill = "__import__('os').kill(__import__('os').getpid(), 9)"
    space = line[: -len(line.lstrip())]
    file = folder / "loop.py"
    file.write_text(text.replace(line, f"{line}\n{space}if step == 3: {kill}") if dies else text)
    return file


def run(file: Path, **keys: Any) -> int:
    words = [f"{key}={value}" for key, value in keys.items()]
    command = [sys.executable, str(file), *words]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
@pytest.mark.timeout(1900)
def test_a_killed_loop_continues_and_ends_with_the_same_weights(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert run(script(tmp_path), run=whole, **EXACT) == 0
    assert run(script(tmp_path, dies=True), run=killed, **EXACT) == -signal.SIGKILL
    assert run(script(tmp_path), resume=killed) == 0
    with closing(sqlite3.connect(killed / "episodes.db")) as db:
        begun = db.execute("SELECT step FROM incarnations ORDER BY incarnation").fetchall()
        trained = db.execute("SELECT incarnation, step FROM steps ORDER BY 1, 2").fetchall()
    assert begun == [(0,), (2,)]
    assert trained == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 3)]
    report = audit_ledger(killed)
    assert (report["faults"], report["finished"], report["batches"]) == ([], True, 4)
    assert [row["step"] for row in metrics(killed)] == list(range(4))
    other = runs.resumed(killed, overrides={"rollout.group_size": 3})
    with pytest.raises(ConfigError, match=r"rollout.group_size is 3, not 2"), other:
        pass
    assert exported(killed) == exported(whole)


def exported(folder: Path) -> bytes:
    """Return the weights of the newest checkpoint."""
    with runs.resumed(folder) as run, Trainer.started(run) as trainer:
        assert run.step == 4
        return (trainer.export(folder / "export") / "model.safetensors").read_bytes()


def test_a_resumed_run_has_the_batches_groups_and_tasks_that_its_log_has(tmp_path):
    folder = tmp_path / "run"

    async def begun() -> None:
        with runs.new(overrides=SMALL | {"run": str(folder)}) as run:
            buffer = Buffer.of(run)
            rollout = Rollout(run, None, buffer=buffer)  # pyright: ignore[reportArgumentType]
            async for index, task in rollout.admitted():
                members = make_group(f"g{index}", [0]).members
                group = Group(f"g{index}", task.id, members, task.weight, index, task.data)
                await rollout.finish(task, group)
                if index == 2:
                    break
            assert [group.index for group in await buffer.batch()] == [0, 1]

    async def resumed() -> None:
        with runs.resumed(folder) as run:
            buffer = Buffer.of(run)
            assert (run.step, buffer.accepted, buffer.room) == (0, 3, 1)
            assert [group.index for group in await buffer.batch()] == [0, 1]
            rollout = Rollout(run, None, buffer=buffer)  # pyright: ignore[reportArgumentType]
            async for index, _ in rollout.admitted():
                assert index == 3
                break

    asyncio.run(begun())
    asyncio.run(resumed())
