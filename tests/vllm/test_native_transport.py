"""Our side of vLLM's own transports, in the interpreter that has vLLM (no GPU is needed)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.kit.cases import cases

CHILD = Path(__file__).with_name("native_child.py")
ROOT = CHILD.parents[2]


@cases("check", ["signatures", "wire", "publication", "gpu"])
def test_against_the_vllm_that_is_installed(vllm_python, check):
    done = subprocess.run(
        [vllm_python, CHILD, check],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.endswith("passed\n"), done.stdout + done.stderr
