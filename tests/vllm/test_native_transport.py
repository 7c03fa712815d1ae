"""Our side of vLLM's own transports, in the interpreter that has vLLM (no GPU is needed)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("native_child.py")
ROOT = CHILD.parents[2]


@pytest.fixture(scope="module")
def said(vllm_python) -> str:
    """What the checks print, one after the other in one process: its imports take a quarter of a
    minute."""
    done = subprocess.run(
        [vllm_python, CHILD],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("check", ["signatures", "wire", "publication", "gpu"])
def test_against_the_vllm_that_is_installed(said, check):
    assert f"{check}: passed\n" in said, said
