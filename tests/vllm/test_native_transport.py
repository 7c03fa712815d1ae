"""Our side of vLLM's own transports, in the interpreter that has vLLM (no GPU is needed)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.kit.cases import cases

CHILD = Path(__file__).with_name("native_child.py")
ROOT = CHILD.parents[2]


SOURCE = os.environ.get("ARL_VLLM_SOURCE", "")
"""The folder of another vLLM's unpacked sdist: its trainer's side is Python alone."""


@cases("check", ["signatures", "wire", "publication", "gpu"])
@cases("source", ["", *([SOURCE] if SOURCE else [])])
def test_against_the_vllm_that_is_installed(vllm_python, source, check):
    path = os.pathsep.join(filter(None, (source, str(ROOT))))
    done = subprocess.run(
        [vllm_python, "-P", CHILD, check],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.endswith("passed\n"), done.stdout + done.stderr
