"""Training runs as a user starts them, in processes of their own."""

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

from agentgym_rl.storage import read_phases

from ._common import say
from ._toy import TOY_EVALUATION, TOY_RUN, resized

TIMEOUT_S = 900.0


class RunFailed(Exception):
    """A run that failed; its messages are on our standard error."""


@dataclass(frozen=True, slots=True)
class Run:
    result: Mapping[str, Any]
    """The JSON object of `arl train --json`."""
    steps: Sequence[Mapping[str, Any]]
    """The lines of its metrics.jsonl."""
    seconds: float
    """The wall time from start to exit."""
    training_s: float
    """The part of it from the trainer's first wait for a batch to the end of its last one,
    including the evaluation before training, if there is one."""


def evaluate(*flags: str) -> dict[str, Any]:
    """Return the JSON object of `arl eval --json FLAGS`.

    Raises:
        CalledProcessError: it ended with an error; its messages are on our standard error.
        TimeoutExpired: it took longer than TIMEOUT_S.
    """
    command = [
        sys.executable,
        "-m",
        "agentgym_rl",
        "eval",
        "--json",
        *resized(flags, TOY_EVALUATION),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True)
    return json.loads(done.stdout)


def train(
    label: str,
    flags: Sequence[str],
    *,
    folder: Path | None = None,
    small: Sequence[str] = TOY_RUN,
) -> Run:
    """Run `arl train FLAGS` in the new run folder `folder`; without one, in a temporary folder. In
    a dry run, the flags `small` replace those with their keys.

    Raises:
        RunFailed: it ended with an error, or took longer than TIMEOUT_S.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="arl-bench-") as scratch:
            return train(label, flags, folder=Path(scratch) / "run", small=small)
    command = ["train", "--json", "--logging.progress=plain", *resized(flags, small)]
    say(f"{label}: arl {' '.join(command)}")
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "agentgym_rl", *command, f"--run={folder}"],
            stdout=subprocess.PIPE,  # progress goes on to our own stderr
            timeout=TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise RunFailed(f"ended with code {error.returncode}; see its messages above") from error
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"took more than {TIMEOUT_S:g} s") from error
    seconds = time.monotonic() - start
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    phases = [step.trainer for step in read_phases(folder)]
    return Run(
        result=json.loads(done.stdout),
        steps=[json.loads(line) for line in lines],
        seconds=seconds,
        training_s=phases[-1][-1][2] - phases[0][0][1],
    )
