"""A translation between the runner's protocol (runner.py) and the types of the sandbox contract."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym import ExecResult, Image, SkippedFile
from agentgym_rl.gym.sandbox_records import Status

from .arguments import checked_files

RESET_S = 60.0
"""The longest time the reply to `reset` may take: longer than all limits of the runner together."""
_PLAIN = ("exit_code", "signal", "truncated", "wall_ms", "cpu_ms")
_PLAIN += ("max_rss_kb", "killed_processes", "state_lost")


class RunnerError(Exception):
    """A request that the runner refused: its error message, and an errno (0: none)."""

    def __init__(self, words: str, number: int) -> None:
        super().__init__(words)
        self.number = number


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pack(files: Mapping[str, bytes], image: Image | None = None) -> dict[str, str]:
    """Return the paths and contents of files in the encoding that the runner reads.

    Raises:
        ValueError, TypeError: see `checked_files`.
    """
    return {path: b64(data) for path, data in checked_files(files, image).items()}


def result_of(reply: Mapping[str, Any], sandbox_id: str) -> ExecResult:
    """Convert a RESULT of the runner."""
    plain = {name: reply[name] for name in _PLAIN if name in reply}
    return ExecResult(
        status=Status(reply["status"]),
        stdout=base64.b64decode(reply["stdout"]),
        stderr=base64.b64decode(reply["stderr"]),
        files={path: base64.b64decode(text) for path, text in reply.get("files", {}).items()},
        skipped_files=tuple(SkippedFile(*pair) for pair in reply.get("skipped_files", ())),
        sandbox_id=sandbox_id,
        **plain,
    )
