"""First rows of 100,000 episodes in `arl inspect`, over HTTP; beside SQL on the log itself.

Rows are cheap: records of 10,000 bytes that hold no tokens, in a log whose pages the system may
have cached. The log is gone afterwards; it takes 1.6 GB of the folder for temporary files.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agentgym_rl.inspector import inspect_live
from agentgym_rl.storage.episode_log import EpisodeLog

from ._common import hardware, say, versions
from ._toy import sized

EPISODES, GROUP_SIZE, RECORD_BYTES = sized(100_000, toy=800), 8, 10_000
GOAL_S = 1.0
PAGES = {
    "newest": "",
    "highest reward": "sort=-reward",
    "an outcome, by length": "outcome=completed&sort=tokens",
    "forked": "fork=any",
    "part of an id": "q=g77&sort=reward",
}
_SQL = (
    "SELECT t.episode_id, t.reward, t.env_id, t.forks, g.status, g.step FROM trajectories t "
    "JOIN groups g USING (group_id) "
)
SQL = {
    "newest": f"{_SQL} ORDER BY t.rowid DESC LIMIT 100",
    "highest reward": f"{_SQL} ORDER BY t.reward DESC LIMIT 100",
    "an outcome, by length": f"{_SQL} WHERE outcome = 'completed' ORDER BY num_tokens LIMIT 100",
    "forked": f"{_SQL} WHERE forks != '{{}}' ORDER BY t.rowid DESC LIMIT 100",
    "part of an id": f"{_SQL} WHERE instr(t.episode_id, 'g77') ORDER BY t.reward LIMIT 100",
}


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as folder:
        run = Path(folder) / "run"
        say(f"writing {EPISODES:,} episodes")
        _write(run)
        direct = _direct(run / "episodes.db")
        rows = asyncio.run(_served(run))
    for row in rows:
        if row["page"] in direct:
            row["sql_s"] = direct[row["page"]]
    first = rows[0]["seconds"]
    return {
        "name": "inspector",
        "hardware": hardware(),
        "versions": versions("msgspec"),
        "rows": rows,
        "ratios": {f"sql: {r['page']}": r["sql_s"] / r["seconds"] for r in rows if "sql_s" in r},
        "goal": f"first rows of {EPISODES:,} episodes in {GOAL_S:g} s",
        "met": first <= GOAL_S,
    }


def _write(run: Path) -> None:
    run.mkdir()
    (run / "config.toml").write_text('steps = 1\n[env]\nid = "math"\n')
    EpisodeLog(run / "episodes.db").close()
    insert = (
        "INSERT INTO trajectories (episode_id, group_id, outcome, reward, num_turns, num_tokens, "
        "env_id, forks, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    with contextlib.closing(sqlite3.connect(run / "episodes.db")) as db:
        db.executemany(insert, _episodes())
        groups = [(f"g{k}", f"t{k}", k // 8, k) for k in range(EPISODES // GROUP_SIZE)]
        db.executemany("INSERT INTO groups VALUES (?, ?, 'consumed', '', 0, 0, ?, ?, '[]')", groups)
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _episodes() -> Iterator[tuple[Any, ...]]:
    draw, record = random.Random(1), msgspec.msgpack.encode({"messages": "x" * RECORD_BYTES})
    for k in range(EPISODES):
        group = k // GROUP_SIZE
        outcome = draw.choice(["completed", "completed", "truncated"])
        forks = "{}" if draw.random() < 0.9 else '{"seam": 1}'
        numbers = (draw.random(), draw.randrange(9), draw.randrange(9000))
        yield (f"g{group}-{k % GROUP_SIZE}", f"g{group}", outcome, *numbers, "math", forks, record)


def _direct(path: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for page, text in SQL.items():
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            start = time.monotonic()
            db.execute(text).fetchall()
            found[page] = time.monotonic() - start
    return found


async def _served(run: Path) -> list[dict[str, Any]]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    rows: list[dict[str, Any]] = []

    async def ask() -> None:
        async with aiohttp.ClientSession(f"{await ready}api/runs/run/") as session:

            async def get(page: str, url: str) -> dict[str, Any]:
                start = time.monotonic()
                async with session.get(url) as answer:
                    found = await answer.json()
                rows.append({"page": page, "seconds": time.monotonic() - start})
                say(f"{page}: {rows[-1]['seconds']:.3f} s")
                return found

            await get("first rows", "episodes")
            start = time.monotonic()
            while not (await get("meanwhile", "episodes?sort=-reward"))["complete"]:
                rows.pop()
                await asyncio.sleep(0.1)
            rows[-1] = {"page": "(all of them read)", "seconds": time.monotonic() - start}
            for page, asked in PAGES.items():
                await get(page, f"episodes?{asked}")
            await get("facets", "facets")
        raise _Done

    try:
        async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
            tasks.create_task(inspect_live([run], on_ready=lambda url, _: ready.set_result(url)))
            tasks.create_task(ask())
    except* _Done:
        pass
    return rows


class _Done(Exception):
    """All is asked."""
