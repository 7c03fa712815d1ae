"""The routes of `arl inspect`, as docs/inspect.md has them."""

import json
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from made_runs import TOKENS, make_client, make_row

from agentgym_rl.storage.trained_tokens import write_tokens
from tests.kit.cases import cases

EPISODES = "/api/runs/first/episodes"


def test_runs(ask, run):
    (found,) = ask("/api/runs")["runs"]
    assert {name: found[name] for name in ("id", "env", "agent", "engine", "status")} == {
        **{"id": "first", "env": "math", "agent": "react", "engine": "embedded"},
        "status": "stopped",
    }
    numbers = [found[k] for k in ("steps", "steps_planned", "episodes", "reward")]
    assert numbers == [1, 3, 4, 0.5]
    assert ask("/api/runs/first/config")["toml"] == (run / "config.toml").read_text()


def test_metrics_that_grow_and_are_cut_back(ask, run):
    assert [row["step"] for row in ask("/api/runs/first/metrics")["rows"]] == [0]
    for after in ("", "-1", "-2"):
        assert len(ask(f"/api/runs/first/metrics?after={after}")["rows"]) == 1
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "loss": NaN}\n{"step": 2')
    rows = ask("/api/runs/first/metrics?after=0")["rows"]
    assert rows == [{"step": 1, "loss": None}]
    (run / "metrics.jsonl").write_text('{"step": 7}\n')
    assert ask("/api/runs/first/metrics")["rows"] == [{"step": 7}]
    (run / "metrics.jsonl").write_text("no JSON at all, but long enough to be a line\n")
    assert "no JSON" in ask("/api/runs/first/metrics", status=404)["error"]


def test_the_table(ask):
    found = ask(EPISODES)
    assert (found["total"], found["complete"]) == (4, True)
    assert [it["id"] for it in found["episodes"]] == ["g2-0", "g1-0", "g0-1", "g0-0"]
    assert found["episodes"][3] == {
        **{"id": "g0-0", "group": "g0", "task": "task-g0", "env": "math", "outcome": "completed"},
        **{"reward": 1.0, "turns": 1, "tokens": 6, "forks": {}, "status": "leased", "cause": ""},
        **{"step": 0, "row": 1, "question": "hello", "answer": "", "expected": "", "verdict": ""},
        **{"parts": {}, "seats": {}, "oldest_version": 2, "newest_version": 2},
    }


@cases(
    "asked, ids",
    [
        ("outcome=agent_error", ["g2-0"]),
        ("env=math&reward_min=1", ["g1-0", "g0-0"]),
        ("fork=seam", ["g1-0"]),
        ("fork=any", ["g1-0"]),
        ("fork=template", []),
        ("group=g0", ["g0-1", "g0-0"]),
        ("status=dropped", ["g2-0"]),
        ("step=0&sort=reward", ["g0-1", "g0-0"]),
        ("q=TASK-G1", ["g1-0"]),
        ("q=HELLO+no", ["g2-0"]),
        ("q=%22hello+no%22", []),
        ("version=2&reward_max=0.5", ["g2-0", "g0-1"]),
        ("version=1", []),
        ("seat=x", []),
        ("offset=1&limit=1", ["g1-0"]),
        ("sort=step", ["g0-0", "g0-1", "g1-0", "g2-0"]),
    ],
)
def test_filters(ask, asked, ids):
    assert [it["id"] for it in ask(f"{EPISODES}?{asked}")["episodes"]] == ids


@cases(
    "url, status, said",
    [
        (f"{EPISODES}?sort=size", 400, "allowed are row, reward"),
        (f"{EPISODES}?reward_min=much", 400, "is no number"),
        (f"{EPISODES}?limit=0", 400, "allowed are 1 to 1000"),
        (f"{EPISODES}?size=3", 400, "unknown parameter 'size'"),
        (f"{EPISODES}?status=lost", 400, "allowed are waiting"),
        (f"{EPISODES}/none", 404, "no episode 'none'"),
        ("/api/runs/first/groups/none", 404, "no group 'none'"),
        ("/api/runs/second/facets", 404, "there are: first"),
        ("/api/runs/..%2Ffirst/config", 404, "no run '../first'"),
        ("/api/runs/first/timeline?steps=x", 400, "write A-B"),
        ("/api/runs/first/nothing", 404, "no route"),
        ("/../app.py", 404, "no file"),
        ("/%2e%2e/app.py", 404, "no file"),
        ("/..%2fapp.py", 404, "no file"),
        ("//etc/passwd", 404, "no file"),
    ],
)
def test_what_is_asked_wrongly_is_explained(ask, url, status, said):
    assert said in ask(url, status=status)["error"]


def test_nothing_but_reading(ask, run):
    status, body = ask.raw("/api/runs", method="POST")
    assert (status, b"only reads" in body) == (400, True)
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    for url in ("facets", "episodes", "episodes/g0-0", "groups/g0", "timeline", "metrics"):
        ask(f"/api/runs/first/{url}")
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before


@cases(
    "asked, expected",
    [
        ("", {"place": 3, "previous": "g1-0", "next": "g0-0", "total": 4}),
        ("sort=row&group=g0", {"place": 2, "previous": "g0-0", "next": None, "total": 2}),
        ("outcome=agent_error", {"place": 0, "previous": None, "next": None, "total": 1}),
        ("q=hello&limit=1", {"place": 3, "previous": "g1-0", "next": "g0-0", "total": 4}),
    ],
)
def test_the_place_of_an_episode_in_a_list(ask, asked, expected):
    found = ask(f"{EPISODES}/g0-1/place?{asked}")
    assert found == {**expected, "complete": True}


def test_facets(ask):
    assert ask("/api/runs/first/facets") == {
        "outcomes": {"agent_error": 1, "completed": 3},
        "envs": {"math": 3, "tools": 1},
        "statuses": {"dropped": 1, "leased": 2, "waiting": 1},
        "forks": {"n_sibling": 1, "seam": 1},
        **{"reward": [-1.0, 1.0], "tokens": [6, 6], "steps": [0, 0], "episodes": 4},
        "seats": [],
        "complete": True,
    }


def test_an_episode_token_for_token(ask, run):
    row = make_row()
    kept = np.array([-0.4, -0.6], np.float32)
    write_tokens(run, step=0, rank=0, rows=[row], proximal=kept, advantages=-kept)
    found = ask(f"{EPISODES}/g0-0")
    assert found["task_data"] == {"question": "g0"}
    assert found["tree"] == [{"turn": 0, "parent": -1, "lineage": 0, "reward": None}]
    (shown,) = found["rows"]
    assert (shown["tokens"], len(shown["text"])) == (TOKENS, 6)
    assert shown["version"] == [None, None, None, 2, 2, 2]
    assert shown["trains"] == [0, 0, 0, 1, 1, 0]
    assert shown["proximal"][3:] == [pytest.approx(-0.4), pytest.approx(-0.6), None]
    assert shown["advantage"][3:] == [pytest.approx(0.4), pytest.approx(0.6), None]
    first, second = ask("/api/runs/first/groups/g0")["members"]
    assert (first["advantage"], second["advantage"]) == (pytest.approx(0.5), None)
    assert ask(f"{EPISODES}/g1-0")["rows"][0]["proximal"] is None
    (run / "tokens" / "step-000000.rank-0.npz").write_bytes(b"PK cut short")
    assert "is no file of tokens" in ask(f"{EPISODES}/g0-0", status=404)["error"]


def test_the_timeline(ask):
    found = ask("/api/runs/first/timeline?steps=0-0")
    assert (found["zero_s"], found["steps"]) == (99.0, [0, 0])
    assert found["batches"] == [[0.0, 11.0, "0"]]
    trainer, episodes, at_once = found["tracks"]
    assert trainer == {"process": "trainer rank 0", "slices": [[0.0, 11.0, "proximal"]]}
    assert episodes["slices"][0] == [4.0, 6.0, "g0-0 turn 0"]
    assert at_once["slices"] == [[4.0, 6.0, "g1-0 turn 0"]]
    assert found["at_once"][-1][1] == 0


def test_a_log_of_before_environments_and_forks_were_columns(ask, run):
    now = ask("/api/runs/first/facets")
    with closing(sqlite3.connect(run / "episodes.db")) as db:
        db.execute("ALTER TABLE trajectories DROP COLUMN env_id")
        db.execute("ALTER TABLE trajectories DROP COLUMN forks")
    assert make_client(run)("/api/runs/first/facets") == now


def test_files_that_are_foreign_cut_short_or_gone(ask, run):
    whole = (run / "episodes.db").read_bytes()
    for broken in (b"something else entirely" * 100, whole[: len(whole) // 2]):
        (run / "episodes.db").write_bytes(broken)
        error = make_client(run)(EPISODES, status=404)["error"]
        assert "is no readable episode log" in error
    (run / "config.toml").write_text("[broken")
    (found,) = make_client(run)("/api/runs")["runs"]
    assert "is no TOML" in found["error"]
    shutil.rmtree(run)
    assert ask("/api/runs")["runs"] == []
    assert "no run 'first'" in ask(EPISODES, status=404)["error"]


def test_a_run_that_begins_meanwhile(ask, run):
    second = run.parent / "second"
    second.mkdir()
    (second / "config.toml").write_text((run / "config.toml").read_text())
    assert [found["id"] for found in ask("/api/runs")["runs"]] == ["first", "second"]
    assert ask("/api/runs/second/episodes")["total"] == 0
    assert ask("/api/runs/second/facets")["episodes"] == 0
    shutil.copy(run / "episodes.db", second / "episodes.db")
    assert make_client(second)("/api/runs/second/episodes")["total"] == 4


def test_runs_of_one_name_have_ids_of_their_own(run):
    other = run.parent.parent / "elsewhere" / "first"
    shutil.copytree(run, other)
    from arl_inspect.folders import Runs

    assert [found.id for found in Runs([run, other, run]).all()] == ["first", "first~2"]


# ---------------------------------------------------------------- who may ask
def test_without_the_token_there_is_nothing(run):
    for url in ("/api/runs", "/", "/api/events", "/index.html?token=wrong"):
        assert "token" in make_client(run, token="secret")(url, status=401)["error"]


def test_the_token_in_url_cookie_and_header(run):
    first = make_client(run, token="secret")
    assert first("/api/runs?token=secret")["runs"]
    cookie = first.answered["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie
    for headers in ({"cookie": cookie.split(";")[0]}, {"authorization": "Bearer secret"}):
        assert make_client(run, headers, token="secret")("/api/runs")["runs"]
    bad = {"cookie": cookie.split("=")[0] + "=other"}
    make_client(run, bad, token="secret")("/api/runs", status=401)


def test_another_page_s_name_for_this_machine_is_refused(run):
    found = make_client(run, {"host": "evil.example:80"})("/api/runs", status=400)
    assert "127.0.0.1" in found["error"]


def test_the_page_s_files_and_headers(run, tmp_path):
    page = tmp_path / "page"
    (page / "vendor").mkdir(parents=True)
    (page / "index.html").write_text("<head></head>")
    (page / "vendor" / "a.js").write_text("1")
    (page / "secret.py").write_text("2")
    (page / "out.js").symlink_to(run / "config.toml")
    ask = make_client(run, page=page)
    preload = b'<link rel="modulepreload" href="vendor/a.js">'
    assert ask.raw("/") == (200, b"<head>" + preload + b"\n</head>")
    assert ask.raw("/index.html") == ask.raw("/")
    assert "default-src 'self'" in ask.answered["content-security-policy"]
    assert ask.raw("/vendor/a.js") == (200, b"1")
    assert ask.answered["content-type"].startswith("text/javascript")
    assert [ask.raw(f"/{name}")[0] for name in ("secret.py", "out.js", "vendor")] == [404] * 3
    assert json.loads(ask.raw("/none")[1]).keys() == {"error"}
