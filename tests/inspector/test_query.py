"""Filters, sorting and pages, against doing it by hand."""

import json
from dataclasses import asdict
from pathlib import Path

import msgspec
from arl_inspect.index import EpisodeIndex
from arl_inspect.query import SORTS, STATUSES, Query
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.storage.episode_reader import Facts, GroupFacts

few = st.sampled_from
numbers = few([-1.0, 0.0, 0.25, 1.0])
episodes = st.builds(
    Facts,
    row=st.just(0),
    episode_id=st.just(""),
    group_id=few(["gA", "gb", "gc"]),
    outcome=few(["completed", "truncated"]),
    reward=numbers,
    num_turns=st.integers(0, 3),
    num_tokens=few([0, 7, 300]),
    env_id=few(["math", "tools"]),
    forks=few(["{}", '{"seam": 1}', '{"seam": 2, "template": 1}']),
)
groups = st.fixed_dictionaries(
    {},
    optional={
        name: st.builds(
            GroupFacts,
            group_id=st.just(name),
            task_id=few(["T1", "t2%_"]),
            status=few(STATUSES[:-1]),
            cause=few(["", "stale"]),
            step=few([None, 0, 3]),
        )
        for name in ("gA", "gb")
    },
)
asked = st.fixed_dictionaries(
    {"sort": few([sign + name for name in SORTS for sign in ("", "-")])},
    optional={
        "outcome": few(["completed", "none"]),
        "env": few(["math", ""]),
        "fork": few(["any", "seam", "template", "sea", '"']),
        "group": few(["gA", "gc"]),
        "status": few(STATUSES),
        "step": few(["0", "3"]),
        "reward_min": numbers.map(str),
        "reward_max": numbers.map(str),
        "tokens_min": few(["7"]),
        "tokens_max": few(["7", "299.5"]),
        "q": few(["GA", "t2%", "_", "e1", "ä"]),
        "offset": few(["0", "2"]),
        "limit": few(["1", "3", "100"]),
    },
)


def by_hand(rows: list[Facts], of: dict[str, GroupFacts], asked: dict[str, str]):
    found = []
    for row in rows:
        group = of.get(row.group_id)
        task, status, step = ("", "open", None) if group is None else (group[1], group[2], group[4])
        forks = json.loads(row.forks)
        texts = (row.episode_id, row.group_id, task)
        given = {name: value for name, value in asked.items() if value}
        fits = {
            "outcome": lambda v, row=row: row.outcome == v,
            "env": lambda v, row=row: row.env_id == v,
            "fork": lambda v, forks=forks: bool(forks) if v == "any" else v in forks,
            "group": lambda v, row=row: row.group_id == v,
            "status": lambda v, status=status: status == v,
            "step": lambda v, step=step: step == int(v),
            "reward_min": lambda v, row=row: row.reward >= float(v),
            "reward_max": lambda v, row=row: row.reward <= float(v),
            "tokens_min": lambda v, row=row: row.num_tokens >= float(v),
            "tokens_max": lambda v, row=row: row.num_tokens <= float(v),
            "q": lambda v, texts=texts: any(v.lower() in text.lower() for text in texts),
        }
        if all(fits[name](value) for name, value in given.items() if name in fits):
            key = {"reward": row.reward, "tokens": row.num_tokens, "turns": row.num_turns}
            found.append(({**key, "step": step, "row": row.row}, row.episode_id))
    name = asked["sort"].removeprefix("-")
    down = asked["sort"].startswith("-")
    known = [it for it in found if it[0][name] is not None]
    known.sort(key=lambda it: (it[0][name], it[0]["row"]), reverse=down)
    unknown = [it for it in found if it[0][name] is None]
    unknown.sort(key=lambda it: it[0]["row"], reverse=down)
    ids = [id for _, id in known + unknown]
    start = int(asked.get("offset", 0))
    return len(ids), ids[start : start + int(asked.get("limit", 100))]


@given(st.lists(episodes, max_size=12), groups, asked)
def test_pages_are_what_a_loop_would_find(rows, of, asked):
    rows = [row._replace(row=k, episode_id=f"e{k}") for k, row in enumerate(rows, 1)]
    index = EpisodeIndex(Path("/nowhere/episodes.db"))
    index._insert(rows)
    index._db.executemany("INSERT INTO groups VALUES (?, ?, ?, ?, ?)", of.values())
    index._refresh = lambda: None  # there is no file to look at
    found = index.page(Query.of(asked))
    assert (found["total"], [it["id"] for it in found["episodes"]]) == by_hand(rows, of, asked)


def test_a_query_without_parameters_is_the_newest_first():
    assert msgspec.to_builtins(asdict(Query.of({"env": ""}))) == asdict(Query())
