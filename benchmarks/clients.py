"""Real clients through the gateway: the rows that each makes, and whether all of it trains.

A scripted model answers with calls of the tools that the client offers. The session's record is
compared with the engine's journal: rows, forks by cause, the trained share of the sampled tokens
that had an alternative, and exactness. Clients that are not installed are skipped, by name: `make
test-agents` installs most; others have an environment of their own in build/clients.
ARL_BENCH_ONLY=codex,dspy plays only these.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from ._common import hardware, say
from .client_loops.clients import CLIENTS, Client
from .client_loops.installed import NotInstalled
from .client_loops.play import Played, load_chat, played

GOAL = {"trained_share": 1.0, "inexact": 0, "unexplained": 0}


def run() -> dict[str, Any]:
    """Play every client that is installed."""
    chat = load_chat()
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    asked = [name for name in os.environ.get("ARL_BENCH_ONLY", "").split(",") if name in CLIENTS]
    for name in asked or CLIENTS:
        client, start = CLIENTS[name], time.monotonic()
        try:
            version = client.version()
        except NotInstalled as missing:
            skipped.append(f"{client.label}: {missing}")
            say(f"{client.label}: skipped; {missing}")
            continue
        found = asyncio.run(played(client.agent, client.case, chat))
        rows.append(_row(client, version, found) | {"seconds": time.monotonic() - start})
        say(_line(rows[-1]))
    figures = {
        "trained_share": min((row["trained_share"] for row in rows), default=0.0),
        "inexact": sum(not row["exact"] for row in rows),
        "unexplained": sum(not _is_good(row) for row in rows),
    }
    return {
        "name": "clients",
        "hardware": hardware(),
        "goal": GOAL,
        "figures": figures,
        "met": {name: figures[name] == wanted for name, wanted in GOAL.items()},
        "skipped": skipped,
        "rows": rows,
    }


def _row(client: Client, version: str, found: Played) -> dict[str, Any]:
    return {
        "client": client.label,
        "version": version,
        "first_request_kb": round(len(found.requests[0][1]) / 1000) if found.requests else 0,
        "turns": found.record.num_turns,
        "rows": found.rows,
        "forks": found.forks,
        "expected_forks": dict(client.forks),
        "trained_share": round(found.trained_share, 4),
        "exact": not found.wrong,
        "wrong": dict(found.wrong),
        "done": not found.unused and found.shown,
        "error": found.error,
        "refused": list(found.refused[:3]),
        "why": client.why,
    }


def _is_good(row: dict[str, Any]) -> bool:
    is_whole = row["exact"] and row["done"] and row["trained_share"] == 1.0
    return is_whole and row["forks"] == row["expected_forks"]


def _line(row: dict[str, Any]) -> str:
    """Return a line of the table of docs/clients.md."""
    forks = ", ".join(f"{n} {name.removeprefix('forks_')}" for name, n in row["forks"].items())
    share, exact = f"{row['trained_share']:.0%}", "yes" if row["exact"] else "no"
    why = row["why"]
    if not _is_good(row):
        why = f"NOT AS EXPECTED: {row['wrong']} {row['refused']} {row['error'][-300:]}"
    cells = (
        f"{row['client']} {row['version']}", row["first_request_kb"], row["turns"], row["rows"],
        forks or "0", share, exact, why,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"
