"""Whole training runs as a user starts them, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._common import say

TIMEOUT_S = 900.0


class RunFailed(Exception):
    """A run that did not come to its end; its messages are on our standard error."""


@dataclass(frozen=True, slots=True)
class Run:
    result: Mapping[str, Any]
    """What `arl train --json` prints."""
    steps: Sequence[Mapping[str, Any]]
    """The lines of its metrics.jsonl."""
    seconds: float
    """Of wall time, from start to exit."""


def train(label: str, flags: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Run:
    """`arl train FLAGS` in a run folder that is thrown away.

    Raises:
        RunFailed: it ended with an error, or took longer than `timeout_s`.
    """
    command = [sys.executable, "-m", "agentgym_rl", "train", "--json", "--logging.progress=plain"]
    say(f"{label}: arl {' '.join([*command[3:], *flags])}")
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as folder:
        start = time.monotonic()
        try:
            done = subprocess.run(
                [*command, *flags, f"--run={folder}/run"],
                stdout=subprocess.PIPE,  # progress goes on to our own stderr
                timeout=timeout_s,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise RunFailed(
                f"ended with code {error.returncode}; see its messages above"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"took more than {timeout_s:g} s") from error
        seconds = time.monotonic() - start
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return Run(json.loads(done.stdout), [json.loads(line) for line in lines], seconds)
