"""One task in Harbor's format: an instruction, an environment to build, tests, and a solution."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
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

    @cached_property
    def digest(self) -> str:
        """Return the digest of the contents."""
        parts = [self.name, self.instruction, json.dumps(self.config, sort_keys=True, default=str)]
        for files in (self.environment, self.tests, self.solution):
            for path, data in sorted(files.items()):
                parts += [path, hashlib.blake2b(data, digest_size=16).hexdigest()]
            parts.append("")
        return digest_of(parts)


def digest_of(parts: Iterable[str]) -> str:
    """Return the digest of several texts."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
