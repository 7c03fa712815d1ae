"""The refusals of the shop: a forbidden call gets a number that an agent cannot guess."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from agentgym_rl import ToolError

from .database import Database

Attempt = tuple[str, str]
"""A tool and its arguments as JSON."""


class RuleRefusal(ToolError):
    """A refusal by a rule of the shop. The number proves that exactly this call was tried."""

    def __init__(self, reason: str, number: int) -> None:
        super().__init__(f"refused, {reason}, ref {number}")


class Rulebook:
    """The common base of all desks: a database, and the refused attempts.

    `salt` makes the numbers of refusals specific to this world.
    """

    def __init__(self, database: Database, salt: str) -> None:
        self.database = database
        self.salt = salt
        self.refused: set[Attempt] = set()

    def refuse(self, reason: str, tool: str, arguments: Mapping[str, Any]) -> RuleRefusal:
        """Record the attempt as refused and return the error to raise."""
        attempt = attempt_of(tool, arguments)
        self.refused.add(attempt)
        text = f"{self.salt}/{attempt[0]}/{attempt[1]}"
        digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
        return RuleRefusal(reason, 100 + int.from_bytes(digest, "big") % 900)

    def row(self, table: str, key: int, word: str) -> tuple[Any, ...]:
        """Return the row of `table` whose id is `key`.

        Raises:
            ToolError: there is no such row.
        """
        in_range = 0 <= key < 2**31  # SQLite would refuse integers beyond 64 bits
        found = self.database.all(f"SELECT * FROM {table} WHERE id = ?", key) if in_range else []
        if not found:
            raise ToolError(f"there is no such {word}")
        return found[0]


def attempt_of(tool: str, arguments: Mapping[str, Any]) -> Attempt:
    """Return the call in the form in which calls are compared."""
    return tool, json.dumps(dict(arguments), sort_keys=True)
