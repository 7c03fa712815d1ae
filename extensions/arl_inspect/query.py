"""The queries for a run's episodes, the SQL that answers them from the index, and the errors that a
request can get."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym_rl.core import ArlError

from .texts import words_of


class HttpError(ArlError):
    """An error with an HTTP status: 400 invalid request, 401 no valid token, 404 not found."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return self.message


def missing(what: str) -> HttpError:
    return HttpError(404, what)


def wrong(what: str) -> HttpError:
    return HttpError(400, what)


SORTS = {
    "row": "e.row",
    "reward": "e.reward",
    "tokens": "e.tokens",
    "turns": "e.turns",
    "step": "g.step",
}
STATUSES = ("waiting", "leased", "consumed", "dropped", "open")
MOST = 1000
"""The largest number of episodes of a page."""
STATUS = "coalesce(g.status, 'open')"
"""The SQL for the status of an episode: the log has none until the group is complete."""
_SAME = {"outcome": "e.outcome", "env": "e.env", "group": "e.grp", "status": STATUS}
_RANGES = ("reward", "tokens")
_OTHERS = ("fork", "step", "version", "seat", "q")


@dataclass(frozen=True, slots=True)
class Query:
    """A query for one page of episodes."""

    same: Mapping[str, str] = field(default_factory=dict[str, str])
    """The required values of outcome, env, group and status."""
    fork: str = ""
    """A cause of a fork, or `any`."""
    step: int | None = None
    version: int | None = None
    """A policy version between the oldest and the newest that sampled tokens of the episode."""
    seat: str = ""
    """A seat of a game."""
    least: Mapping[str, float] = field(default_factory=dict[str, float])
    most: Mapping[str, float] = field(default_factory=dict[str, float])
    """The largest reward and tokens, inclusive; `least` has the smallest ones."""
    q: str = ""
    """Words that the episode's texts all contain (parts in double quotation marks as they are), or
    a part of the episode's, the group's or the task's id. Case is ignored; in ids only that of
    ASCII letters."""
    sort: str = "row"
    descending: bool = True
    offset: int = 0
    limit: int = 100

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Query:
        """Read the parameters of a URL; empty ones are ignored.

        Raises:
            HttpError: a parameter is unknown, or has an invalid value (400).
        """
        given = {name: value for name, value in asked.items() if value != ""}
        ranges = [f"{name}_{end}" for name in _RANGES for end in ("min", "max")]
        known = {*_SAME, *ranges, *_OTHERS, "sort", "offset", "limit"}
        if unknown := sorted(given.keys() - known):
            raise wrong(f"unknown parameter {unknown[0]!r}; known: {', '.join(sorted(known))}")
        sort = given.get("sort", "-row")
        if sort.removeprefix("-") not in SORTS:
            raise wrong(f"sort={sort!r}: allowed are {', '.join(SORTS)}, with - for descending")
        if given.get("status", "open") not in STATUSES:
            raise wrong(f"status={given['status']!r}: allowed are {', '.join(STATUSES)}")
        return cls(
            same={name: given[name] for name in _SAME if name in given},
            fork=given.get("fork", ""),
            step=whole(given, "step", least=0) if "step" in given else None,
            version=whole(given, "version", least=0) if "version" in given else None,
            seat=given.get("seat", ""),
            least={n: _number(given, f"{n}_min") for n in _RANGES if f"{n}_min" in given},
            most={n: _number(given, f"{n}_max") for n in _RANGES if f"{n}_max" in given},
            q=given.get("q", ""),
            sort=sort.removeprefix("-"),
            descending=sort.startswith("-"),
            offset=whole(given, "offset", least=0, default=0),
            limit=whole(given, "limit", least=1, most=MOST, default=100),
        )

    @property
    def words(self) -> list[str]:
        """Return the words of `q`."""
        return words_of(self.q)

    @property
    def needs_texts(self) -> bool:
        """Return whether only the records of all episodes answer the query."""
        return bool(self.q or self.seat) or self.version is not None

    def where(self) -> tuple[str, list[Any]]:
        """Return the SQL condition and its values."""
        terms: list[str] = []
        values: list[Any] = []

        def term(text: str, *of: Any) -> None:
            terms.append(text)
            values.extend(of)

        for name, value in self.same.items():
            term(f"{_SAME[name]} = ?", value)
        if self.fork == "any":
            term("e.forks != '{}'")
        elif self.fork:
            term("EXISTS (SELECT 1 FROM json_each(e.forks) WHERE key = ?)", self.fork)
        if self.step is not None:
            term("g.step = ?", self.step)
        for bounds, sign in ((self.least, ">="), (self.most, "<=")):
            for name, bound in bounds.items():
                term(f"e.{name} {sign} ?", bound)
        if self.version is not None:
            term("? BETWEEN k.oldest AND k.newest", self.version)
        if self.seat:
            term("EXISTS (SELECT 1 FROM json_each(k.seats) WHERE key = ?)", self.seat)
        if self.q:
            texts = ("e.id", "e.grp", "coalesce(g.task, '')")
            has = " OR ".join(f"instr(lower({text}), ?) > 0" for text in texts)
            term(f"(e.row IN found OR {has})", *[_lower(self.q)] * len(texts))
        return (f" WHERE {' AND '.join(terms)}" if terms else ""), values

    def order(self) -> str:
        """Return the ORDER BY clause: sorted by step, episodes without a step come last; ties are
        broken by row, in the direction of the sort."""
        way = "DESC" if self.descending else "ASC"
        last = "g.step IS NULL, " if self.sort == "step" else ""
        return f" ORDER BY {last}{SORTS[self.sort]} {way}, e.row {way}"


def _lower(text: str) -> str:
    """Convert text to lower case as SQLite's lower() does: only ASCII letters."""
    return "".join(c.lower() if c.isascii() else c for c in text)


def _number(given: Mapping[str, str], name: str) -> float:
    try:
        value = float(given[name])
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise wrong(f"{name}={given[name]!r} is no number")
    return value


def whole(
    given: Mapping[str, str], name: str, *, least: float, most: float = 2**62, default: int = 0
) -> int:
    """Return the whole number of a parameter within bounds, or raise HttpError (400). An empty one
    is the default."""
    text = given.get(name) or str(default)
    try:
        value = int(text)
    except ValueError:
        raise wrong(f"{name}={text!r} is no whole number") from None
    if not least <= value <= most:
        raise wrong(f"{name}={value}: allowed are {least} to {most}")
    return value
