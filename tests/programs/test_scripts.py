"""Every script and example that no other suite runs, at toy size."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_rl.models.resolve import BUNDLED

ROOT = Path(__file__).parents[2]
HERE = {
    "scripts/architectures.py": ("Qwen3",),
    "scripts/large_ranks.py": ("--hidden=64", "--layers=2", "--vocab=256", "--ranks=2"),
    "scripts/long_row.py": ("--tokens=8192", "--fits=3072", "--margin=1.2"),
    "scripts/mutants.py": ("--list", "--num=3"),
    "scripts/routing.py": (),
    "scripts/tiny_model/measure.py": (f"--model={BUNDLED}", "--family=math", "--tasks=4"),
    "scripts/trace_episode.py": (),
    "scripts/upcycle.py": ("--model=bundled/math", "--out=mixture"),
}
"""The arguments of each program that runs here."""
ELSEWHERE = {
    "examples/loop.py": "tests/run/test_loop.py",
    "examples/loop_replay.py": "tests/run/test_loop.py",
    "examples/loop_turn_rewards.py": "tests/run/test_loop.py",
    "examples/online/player.py": "tests/e2e/test_serve.py",
    "examples/reward.py": "tests/test_examples.py",
    "scripts/against_generate.py": "tests/evaluate/test_against_generate.py",
    "scripts/ci_suites.py": "tests/test_ci.py",
    "scripts/dockerd.py": "Makefile",
    "scripts/docs/make.py": "Makefile",
    "scripts/lowest_versions.py": "Makefile",
    "scripts/peers/compare.py": "tests/algo/test_peers.py",
    "scripts/ray_nodes.py": "tests/cluster/test_ray_network.py",
    "scripts/sandbox_image.py": "tests/contracts/sandboxes.py",
    "scripts/smollm2.py": "tests/test_smollm2.py",
    "scripts/tiny_model/make.py": "tests/models/test_tiny_model.py",
}
"""The file that runs each of the others."""


def starts(file: Path) -> bool:
    """Return whether a file is a program: it has a block for its start."""
    return any(
        isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        for node in ast.parse(file.read_text()).body
    )


def test_every_program_is_run_by_a_suite():
    programs = {
        str(file.relative_to(ROOT))
        for folder in ("scripts", "examples")
        for file in (ROOT / folder).rglob("*.py")
        if starts(file)
    }
    assert programs - HERE.keys() - ELSEWHERE.keys() == set()
    for program, place in ELSEWHERE.items():
        assert Path(program).stem in (ROOT / place).read_text(), program


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", HERE)
def test_a_program_runs_at_toy_size(program, tmp_path):
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run(
        [sys.executable, ROOT / program, *HERE[program]],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip()


def test_every_notebook_is_run_by_a_suite():
    found = [
        file
        for file in ROOT.rglob("*.ipynb")
        if not any(part.startswith(".") or part == "build" for part in file.relative_to(ROOT).parts)
    ]
    executed = (ROOT / "tests/notebooks/test_executed.py").read_text()
    assert found
    assert [file.name for file in found if file.stem not in executed] == []
