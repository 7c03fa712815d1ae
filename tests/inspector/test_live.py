"""`arl inspect` as a program: served, told of changes, ended; and one file."""

import asyncio
import base64
import gzip
import json
import re
import shutil
import time
from pathlib import Path

import aiohttp
import pytest
from arl_inspect.export import write_page
from arl_inspect.serve import inspect_live
from made_runs import make_episode, make_run

from agentgym_rl.cli.main import _main
from agentgym_rl.core import ConfigError
from tests.kit.cases import cases


async def served(place, use, **options):
    """`use(url)`, with the inspector at work."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    live = inspect_live([place], on_ready=lambda url, _: ready.set_result(url), **options)
    async with asyncio.timeout(60):
        task = asyncio.create_task(live)
        try:
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
            return await use(ready.result())
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.slow
def test_a_change_is_told(run):
    async def use(url: str):
        async with aiohttp.ClientSession() as session, session.get(f"{url}api/events") as events:
            assert events.content_type == "text/event-stream"
            assert await events.content.readline() == b": arl inspect\n"
            await asyncio.sleep(1.5)  # it has looked once by then, or looks later: no matter
            with (run / "metrics.jsonl").open("a") as file:
                file.write('{"step": 1}\n')
            began = time.monotonic()
            async for line in events.content:
                if line.startswith(b"data: "):
                    assert time.monotonic() - began < 60
                    return json.loads(line.removeprefix(b"data: "))

    expected = {"run": "first", "steps": 2, "episodes": 4, "status": "stopped"}
    expected |= {"kind": "train", "failure": ""}
    assert asyncio.run(served(run.parent, use)) == expected


def test_another_host_wants_the_token(run):
    async def use(url: str):
        page, _, token = url.partition("?token=")
        assert len(token) >= 32
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            assert (await session.get(f"{page}api/runs")).status == 401
            assert (await session.get(f"{page}api/runs?token={token}")).status == 200
            return (await session.get(f"{page}api/runs")).status  # by the cookie

    assert asyncio.run(served(run, use, host="0.0.0.0")) == 200


# ---------------------------------------------------------------- one file
@pytest.fixture
def page(tmp_path):
    folder = tmp_path / "page"
    (folder / "vendor").mkdir(parents=True)
    (folder / "index.html").write_text(
        "<!doctype html><html><head><meta charset=utf-8>"
        '<link rel="stylesheet" href="look.css"><link rel="icon" href="icon.svg"></head><body>'
        '<script src="vendor/chart.js"></script><script type="module" src="./main.js"></script>'
        "</body></html>"
    )
    (folder / "look.css").write_text("body { background: url('icon.svg') }")
    (folder / "icon.svg").write_text("<svg/>")
    (folder / "vendor" / "chart.js").write_text("const end = '</script>';")
    (folder / "main.js").write_text(
        "import { a } from './parts/a.js';\nconst later = () => import('./parts/a.js');"
    )
    (folder / "parts").mkdir()
    (folder / "parts" / "a.js").write_text('export * from "../main.js"; export const a = 1;')
    return folder


def written(run, page, tmp_path, **options):
    out = tmp_path / "out.html"
    report = write_page([run], out, page=page, **options)
    text = out.read_text()
    (packed,) = re.findall(r'id="arl-data" data-encoding="gzip\+base64">([^<]*)<', text)
    return report, text, json.loads(gzip.decompress(base64.b64decode(packed)))


def test_one_file_has_the_page(run, page, tmp_path):
    _, text, _ = written(run, page, tmp_path, episodes=200)
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", text)
    assert "<\\/script>" in text
    assert 'import "arl/main.js";' in text
    (found,) = re.findall(r'<script type="importmap">(.*?)</script>', text)
    modules = {
        name: base64.b64decode(url.partition("base64,")[2]).decode()
        for name, url in json.loads(found)["imports"].items()
    }
    assert modules["arl/main.js"].count("arl/parts/a.js") == 2
    assert modules["arl/parts/a.js"].startswith('export * from "arl/main.js"')
    assert "default-src 'none'" in text
    assert text.index("importmap") < text.index('type="module"')


def test_one_file_has_the_answers(run, ask, page, tmp_path):
    report, _, data = written(run, page, tmp_path, episodes=200)
    assert (report["episodes"], report["left_out"]) == (4, 0)
    answers = data["answers"]
    for url in ("facets", "metrics", "timeline", "config", "episodes", "episodes/g0-1"):
        assert answers[f"/api/runs/first/{url}"] == ask(f"/api/runs/first/{url}")
    assert answers["/api/runs/first/groups/g0"] == ask("/api/runs/first/groups/g0")
    with pytest.raises(ConfigError, match="the file exists"):
        written(run, page, tmp_path, episodes=200)


def test_a_large_group_leaves_room_for_the_others(tmp_path, page):
    sizes = {"small": 4, "large": 60, "last": 4}
    groups = {
        name: [make_episode(f"{name}-{i}", name) for i in range(n)] for name, n in sizes.items()
    }
    report, _, data = written(make_run(tmp_path / "uneven", groups), page, tmp_path, episodes=20)
    assert (report["episodes"], report["left_out"]) == (20, 48)
    base = "/api/runs/uneven/groups/"
    kept = {name: data["answers"][base + name] for name in sizes}
    members = {name: [it["id"] for it in each["members"]] for name, each in kept.items()}
    assert {name: len(each) for name, each in members.items()} == {
        "small": 4,
        "large": 12,
        "last": 4,
    }
    assert sorted(int(id.removeprefix("large-")) // 5 for id in members["large"]) == list(range(12))
    assert {name: each["left_out"] for name, each in kept.items()} == {
        "small": 0,
        "large": 48,
        "last": 0,
    }


def test_one_enormous_group_alone_is_cut(tmp_path, page):
    groups = {"all": [make_episode(f"all-{i}", "all") for i in range(30)]}
    report, _, _ = written(make_run(tmp_path / "one", groups), page, tmp_path, episodes=7)
    assert (report["episodes"], report["left_out"]) == (7, 23)


@cases(
    "name, component",
    [
        ("run (1)", "run%20(1)"),
        ("it's *new*!~", "it's%20*new*!~"),
        ("a+b&c=d#e%f", "a%2Bb%26c%3Dd%23e%25f"),
        ("größe 模型", "gr%C3%B6%C3%9Fe%20%E6%A8%A1%E5%9E%8B"),
    ],
)
def test_answers_are_where_the_page_asks_for_them(run, page, tmp_path, name, component):
    odd = Path(shutil.copytree(run, tmp_path / name))
    answers = written(odd, page, tmp_path, episodes=2)[2]["answers"]
    assert {path.split("/")[3] for path in answers if path.count("/") > 3} == {component}


def test_one_file_leaves_episodes_out(run, page, tmp_path):
    report, _, data = written(run, page, tmp_path, episodes=2)
    assert report["left_out"] == data["left_out"]["first"] == 4 - report["episodes"]
    assert report["episodes"] in (1, 2)
    assert data["answers"]["/api/runs/first/episodes"]["total"] == 4


def test_a_page_that_lacks_a_file_says_so(run, page, tmp_path):
    (page / "parts" / "a.js").unlink()
    with pytest.raises(ConfigError, match=r"imports \./parts/a\.js"):
        written(run, page, tmp_path, episodes=2)


# ---------------------------------------------------------------- the command
@cases(
    "line, said",
    [
        ("--episodes=3", "--episodes is the number of episodes in the file of --html: give both"),
        ("--html=x.html --open", "leave out --host, --port, --open"),
        ("--html=x.html --episodes=-1", "allowed are 0 and more"),
        ("nowhere", "no folder nowhere"),
        ("", "no folder `runs` here"),
    ],
)
def test_wrong_use(tmp_path, monkeypatch, capsys, line, said):
    monkeypatch.chdir(tmp_path)
    assert _main(["inspect", *line.split()]) == 2
    assert said in capsys.readouterr().err
