"""A small task in Harbor's format, as files and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w
from arl_envs.harbor.adapters import write_folder
from arl_envs.harbor.task import HarborTask

DOCKERFILE = b"FROM python:3.11-slim\nWORKDIR /app\nCOPY repo/ /app/\n"
TEST = b"""#!/bin/sh
if [ "$(cat answer.txt)" = 42 ]; then pay=1; else pay=0; fi
echo "answer: $(cat answer.txt)"
echo $pay > /logs/verifier/reward.txt
"""
SOLVE = b"#!/bin/sh\necho 42 > answer.txt\n"


def small_task(**changes: Any) -> HarborTask:
    """A task that asks for the file answer.txt."""
    parts: dict[str, Any] = {
        "name": "answer",
        "instruction": "Write 42 into answer.txt.",
        "config": {"schema_version": "1.4", "verifier": {"timeout_sec": 60.0}},
        "environment": {"Dockerfile": DOCKERFILE, "repo/README.md": b"about\n"},
        "tests": {"test.sh": TEST},
        "solution": {"solve.sh": SOLVE},
    }
    return HarborTask(**{**parts, **changes})


def written(folder: Path, **changes: Any) -> Path:
    """The folder of the small task."""
    write_folder(small_task(**changes), folder)
    return folder


def toml(data: dict[str, Any]) -> str:
    return tomli_w.dumps(data)
