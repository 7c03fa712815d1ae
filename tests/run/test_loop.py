"""The written-out training loop: short, equal to its page, asynchronous within the bound, exact."""

import ast
import asyncio
import importlib.util
import json
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentgym_rl.config import load_config
from agentgym_rl.storage.episode_log import EpisodeLog
from tests.docs.blocks import ROOT, blocks

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


def variation() -> str:
    """Return the diff on the page."""
    (diff,) = blocks("diff", PAGE)
    return diff.text


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


def test_the_script_is_short_and_imports_only_public_names():
    assert len(LOOP.read_text().splitlines()) <= 144
    imports = [n for n in ast.walk(ast.parse(LOOP.read_text())) if isinstance(n, ast.ImportFrom)]
    names = [part for n in imports for part in (*str(n.module).split("."), *_names(n))]
    names += [n.attr for n in ast.walk(ast.parse(LOOP.read_text())) if isinstance(n, ast.Attribute)]
    assert [name for name in names if name.startswith("_")] == []


def _names(node: ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names]


def test_the_page_shows_the_script_part_by_part():
    shown = [block.text for block in blocks("python", PAGE)]
    assert "\n\n".join(shown) == LOOP.read_text()


def test_the_variation_is_small():
    lines = variation().splitlines()[2:]
    assert 0 < len([line for line in lines if line[0] in "+-"]) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("diff", [None, variation], ids=["loop", "variation"])
def test_the_loop_trains_within_the_staleness_bound(tmp_path, diff):
    script = tmp_path / "loop.py"
    script.write_text(applied(diff(), LOOP.read_text()) if diff else LOOP.read_text())
    run = tmp_path / f"run-{tmp_path.name}"  # a name of its own, for its weights folder
    config = load_config(None, SMALL | {"run": str(run)})
    before, after = asyncio.run(imported(script).main(config))
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


def metrics(run: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def imported(file: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location("loop_example", file)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
