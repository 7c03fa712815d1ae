"""One task in Harbor's format: an instruction, an environment to build, tests, and a solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HarborTask:
    """The contents of a task folder; a generator makes the same in memory."""

    name: str
    """The name for messages and task ids, such as "bugs/3f2a91"."""
    instruction: str
    """The text of instruction.md, for the agent."""
    config: Mapping[str, Any]
    """The parsed task.toml."""
    environment: Mapping[str, bytes]
    """The files of environment/, by relative path: the Dockerfile and what it copies."""
    tests: Mapping[str, bytes]
    """The files of tests/, copied to /tests once the agent is gone; test.sh runs them."""
    solution: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """The files of solution/, copied to /solution for the oracle alone; solve.sh plays them."""
