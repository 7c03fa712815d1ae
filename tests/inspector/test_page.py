"""The page of `arl inspect`, driven in a real Chromium."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from arl_inspect.export import write_page
from arl_inspect.serve import inspect_live
from made_runs import make_episode, make_run

from agentgym_rl.core import Credit, Group, Outcome, Task
from agentgym_rl.storage import EpisodeLog, EpisodeReader
from agentgym_rl.storage.trained_tokens import write_tokens
from tests.exhaustive import REQUIRED

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:  # the fixture says so
    expect = sync_playwright = None

pytestmark = pytest.mark.slow
WAIT_MS = 30_000
HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
VIEWS = ("", "#curves=first,second", "#timeline=first", "#episodes=first", "#group=first%2Fg0")
VIEWS += ("#episode=first%2Fg1-0&colour=version", "#episode=first%2Fg0-0&colour=advantage")


@pytest.fixture(scope="module")
def chromium():
    """A browser, or the reason why there is none."""
    path = os.environ.get("ARL_CHROMIUM") or shutil.which("chromium")
    if not path or sync_playwright is None:
        if "chromium" in REQUIRED:
            pytest.fail("no chromium or no playwright, and ARL_REQUIRE names chromium")
        pytest.skip("no chromium here (apt-get install chromium; ARL_CHROMIUM names another)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def aside(work, *arguments):
    """In a thread of its own: playwright has an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *arguments).result()


@pytest.fixture
def runs(tmp_path) -> Path:
    """Two runs; the first has a fork, a failure, hostile text, and what was made of its tokens."""
    said = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": HOSTILE, "tool_calls": [
            {"id": "c0", "function": {"name": "calculator", "arguments": '{"x": 1}'}}]},
        {"role": "tool", "tool_call_id": "c0", "content": "42"},
    ]  # fmt: skip
    forked = make_episode(
        "g1-0",
        "g1",
        metrics={"forks": 1.0, "forks_seam": 1.0},
        num_turns=3,
        credit=Credit(parents=[-1, 0, 0], lineages=[0, 0, 1]),
    )
    forked = replace(forked, rows=[forked.rows[0], replace(forked.rows[0], lineage=1)])
    groups = {
        "g0": [
            make_episode("g0-0", "g0", messages=said, verdict="wrong: 41"),
            make_episode("g0-1", "g0", reward=0.0),
        ],
        "g1": [forked],
        "g2": [make_episode("g2-0", "g2", outcome=Outcome.AGENT_ERROR, error="no", reward=-1.0)],
    }
    first = aside(make_run, tmp_path / "runs" / "first", groups)
    rows = [row for episode in groups["g0"] for row in episode.rows]
    count = sum(row.num_trained for row in rows)
    values = {"proximal": np.full(count, -0.25), "advantages": np.linspace(-1, 1, count)}
    write_tokens(first, step=0, rank=0, rows=rows, **values)
    aside(make_run, tmp_path / "runs" / "second", {"g0": [make_episode("g0-0", "g0")]})
    return first.parent


@contextmanager
def served(place: Path, **options) -> Iterator[str]:
    """The inspector in a thread; its URL."""
    urls: list[str] = []
    ready = threading.Event()

    async def serve() -> None:
        task = asyncio.current_task()
        loop.append(asyncio.get_running_loop())
        tasks.append(task)
        with suppress(asyncio.CancelledError):
            await inspect_live(
                [place], on_ready=lambda url, _: (urls.append(url), ready.set()), **options
            )
        await asyncio.sleep(0.2)  # connections that were closed are told so

    loop: list[asyncio.AbstractEventLoop] = []
    tasks: list[asyncio.Task[None] | None] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield urls[0]
    finally:
        loop[0].call_soon_threadsafe(tasks[0].cancel)
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def opened(chromium, url: str, **options):
    """A page that may not complain, nor ask anybody else."""
    context = chromium.new_context(viewport={"width": 1280, "height": 860}, **options)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    wrong: list[str] = []
    refused: list[str] = []
    home = url.split("#")[0].rsplit("/", 1)[0]
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on("response", lambda r: refused.append(r.url) if r.status >= 400 else None)
    page.on(
        "request",
        lambda r: None if r.url.startswith((home, "data:")) else wrong.append(f"asked {r.url}"),
    )
    page.goto(url)
    try:
        yield page
        assert [text for text in wrong if not (refused and "404" in text)] == []
        assert all("none" in asked for asked in refused)
        assert page.evaluate("window.hacked") is None
    finally:
        context.close()


@pytest.fixture
def page(chromium, runs):
    with served(runs) as url, opened(chromium, url) as page:
        yield page


def rows(page) -> list[str]:
    """Episodes in sight."""
    expect(page.get_by_role("status")).not_to_contain_text("reading", timeout=WAIT_MS)
    return page.locator(".grid .body [role=row] a[href*=episode]").all_inner_texts()


def at(page, text: str) -> None:
    page.wait_for_url(lambda url: text in unquote(url))


def test_from_the_runs_to_the_numbers_of_a_token(page):
    page.get_by_role("row", name="first").get_by_role("link", name="4 episodes").click()
    page.get_by_text("4 episodes").wait_for()
    assert rows(page) == ["g2-0", "g1-0", "g0-1", "g0-0"]
    page.get_by_label("outcome").select_option("agent_error")
    page.get_by_text("1 episode", exact=True).wait_for()
    assert rows(page) == ["g2-0"]
    page.get_by_role("button", name="no filters").click()
    page.get_by_text("more filters").click()
    page.get_by_label("fork").select_option("any")
    page.get_by_text("1 episode", exact=True).wait_for()
    assert rows(page) == ["g1-0"]
    page.get_by_role("button", name="no filters").click()
    page.get_by_text("4 episodes").wait_for()
    page.get_by_role("button", name="reward").click()
    at(page, "sort=-reward")
    # The highest reward, the newest first.
    expect(page.locator(".grid .body a").first).to_have_text("g1-0", timeout=WAIT_MS)
    page.get_by_role("link", name="g0-0").click()
    page.get_by_role("heading", name="Episode g0-0").wait_for()
    page.locator(".row [data-i]").first.wait_for()
    assert page.locator(".message").count() == 3
    assert "wrong: 41" in page.locator(".result").inner_text()
    assert HOSTILE in page.locator(".message.assistant").inner_text()
    tokens = page.locator(".row [data-i]")
    assert tokens.count() == 6
    for kind, words in (("behavior", "-1"), ("gap", "0.01"), ("advantage", "-1.0")):
        page.get_by_label("coloured by").select_option(kind)
        at(page, f"colour={kind}")
        page.locator(".legend", has_text=words).wait_for()
    colours = [tokens.nth(i).evaluate("t => t.style.background") for i in range(6)]
    assert colours[:3] == ["", "", ""]
    assert colours[3] != colours[4], "advantages differ"
    tokens.nth(3).hover()
    told = page.locator(".numbers").inner_text()
    assert "behavior log-prob\n-0.5" in told
    assert "proximal log-prob\n-0.25" in told
    page.get_by_role("link", name="g0", exact=True).click()
    page.get_by_role("heading", name="Group g0").wait_for()
    page.locator(".members article").nth(1).wait_for()
    assert page.locator(".members article").count() == 2
    told = page.locator(".message", has_text="hello")
    assert told.count() == 1, "both were told it, and it stands there once"
    assert "wrong: 41" in page.locator(".members").inner_text()


def test_what_is_drawn_follows_the_theme(page):
    page.goto(page.url + "#episode=first%2Fg0-0&colour=advantage")
    tokens = page.locator(".row [data-i]")
    tokens.first.wait_for()
    light = [tokens.nth(i).evaluate("t => t.style.background") for i in (3, 4)]
    page.get_by_role("button", name="dark").click()
    page.get_by_role("button", name="light").wait_for()
    dark = [tokens.nth(i).evaluate("t => t.style.background") for i in (3, 4)]
    assert len({*light, *dark}) == 4
    page.get_by_role("link", name="curves").click()
    page.locator(".chart canvas").first.wait_for()
    image = "document.querySelector('.chart canvas').toDataURL()"
    drawn = page.evaluate(image)
    page.get_by_role("button", name="light").click()
    page.wait_for_function(f"before => {image} !== before", arg=drawn)


def test_an_episode_is_opened_from_the_timeline(page):
    page.goto(page.url + "#timeline=first")
    place = page.locator("canvas").bounding_box()
    # Below the ruler: batches, the trainer, turns; then what g0-0 sampled, 4 to 6 of 11 seconds.
    names = min(150, place["width"] / 3)
    x = place["x"] + names + 5 / 11 * (place["width"] - names)
    page.mouse.move(x, place["y"] + 20 + 11)
    page.get_by_role("status").get_by_text("batch 0, 11 s").wait_for()
    page.mouse.move(x, place["y"] + 20 + 3 * 22 + 4)
    page.get_by_role("status").get_by_text("g0-0 turn 0").wait_for()
    page.mouse.down()
    page.mouse.up()
    page.get_by_role("heading", name="Episode g0-0").wait_for()


def test_forks_are_a_tree_and_each_conversation_has_its_row(page):
    page.goto(page.url + "#episode=first%2Fg1-0")
    page.get_by_role("img", name="3 turns in 2 branches").wait_for()
    page.locator(".tree g").nth(2).click()
    at(page, "row=1")
    page.locator(".tree g.chosen").wait_for()
    assert page.get_by_label("row").input_value() == "1"


def call(id, name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": id, "type": "function", "function": function}


def test_commands_are_a_terminal_and_edits_a_difference(chromium, tmp_path):
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-old line\n+new line\n*** End Patch"
    acts = [
        call("c0", "bash", {"command": f"ls {HOSTILE}"}),
        call("c1", "edit", {"path": "a.py", "old": "x < 1\ny", "new": "x <= 1\ny"}),
        call("c2", "Edit", {"file_path": "b.py", "old_string": "", "new_string": "z = 2\n"}),
        call("c3", "shell", {"command": ["apply_patch", patch]}),
        call("c4", "calculator", {"path": 3, "x": 1}),
        call("c5", "bash", "not json"),
    ]
    said = [{"role": "assistant", "content": None, "tool_calls": acts}]
    said += [
        {"role": "tool", "tool_call_id": f"c{i}", "content": f"answer {i} {HOSTILE}"}
        for i in range(6)
    ]
    aside(make_run, tmp_path / "first", {"g0": [make_episode("g0-0", "g0", messages=said)]})
    with served(tmp_path / "first") as url, opened(chromium, url) as page:
        page.goto(page.url + "#episode=first%2Fg0-0")
        page.locator(".terminal").first.wait_for()
        assert page.locator(".terminal").all_inner_texts() == [
            f"$ ls {HOSTILE}\nanswer 0 {HOSTILE}"
        ]
        assert page.locator(".diff .removed").all_inner_texts() == ["-x < 1", "-y", "-old line"]
        added = page.locator(".diff .added").all_inner_texts()
        assert added == ["+x <= 1", "+y", "+z = 2", "+new line"]
        assert page.locator(".message.tool").count() == 2, "answers of calls that are neither"


def test_runs_are_compared(page):
    page.get_by_label("choose first").check()
    page.get_by_label("choose second").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.get_by_role("heading", name="Curves of 2 runs").wait_for()
    expect(page.locator(".legend-runs th a")).to_have_text(["first", "second"])
    page.locator(".chart canvas").first.wait_for()


def test_new_episodes_are_told_while_a_run_goes_on(page, runs):
    page.goto(page.url + "#episodes=first")
    page.get_by_text("4 episodes").wait_for()

    async def more() -> None:
        group = Group("g3", "task-g3", [make_episode("g3-0", "g3")])
        await log.add_group(Task("task-g3", 3, data={}), 3, group)

    with closing(EpisodeLog(runs / "first" / "episodes.db")) as log:
        aside(asyncio.run, more())
    page.get_by_role("button", name="1 new: show").click()
    page.get_by_text("5 episodes").wait_for()
    assert rows(page)[0] == "g3-0"


def test_an_open_episode_gets_its_numbers_when_it_is_trained(page, runs):
    page.goto(page.url + "#episode=first%2Fg1-0&colour=advantage")
    page.get_by_text("There are no advantages of this row").wait_for()
    with closing(EpisodeReader(runs / "first" / "episodes.db")) as log:
        episode = log.trajectory("g1-0")
    values = np.ones(sum(row.num_trained for row in episode.rows))
    made = {"rows": episode.rows, "proximal": -values, "advantages": values}
    write_tokens(runs / "first", step=1, rank=0, **made)
    with closing(EpisodeLog(runs / "first" / "episodes.db")) as log:
        aside(asyncio.run, log.lease([Group("g1", "task-g1", [episode])], 1))
    with (runs / "first" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1}\n')
    page.locator(".legend", has_text="-1.0").wait_for()


def test_one_file_works_without_a_server(chromium, runs, tmp_path):
    out = tmp_path / "run.html"
    write_page([runs], out)
    with opened(chromium, f"{out.as_uri()}#episodes=first&outcome=completed") as page:
        page.get_by_text("3 episodes").wait_for()
        page.get_by_role("link", name="g0-0").click()
        page.get_by_role("heading", name="Episode g0-0").wait_for()
        page.locator(".row [data-i]").first.wait_for()
        assert page.locator(".row [data-i]").count() == 6
        page.get_by_role("link", name="curves").click()
        page.locator(".chart canvas").first.wait_for()


def test_what_is_not_there_is_said(page):
    page.goto(page.url + "#episode=first%2Fnone")
    page.get_by_role("alert").get_by_text("no episode 'none'").wait_for()
    page.evaluate("location.hash = '#nowhere=1'")
    page.get_by_text("There is no view nowhere").wait_for()


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 400)], ids=str
)
def test_everybody_can_read_it(chromium, runs, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 860}}
    with served(runs) as url:
        context = chromium.new_context(**options)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        for view in VIEWS:
            page.goto("about:blank")
            page.goto(url + view)
            page.locator(
                "main :is(table, .chart, canvas, [role=row] a, .row, .members)"
            ).first.wait_for()
            found = axe.run(page).response["violations"]
            serious = [f for f in found if f["impact"] in ("serious", "critical")]
            nodes = [(f["id"], n["html"][:150]) for f in serious for n in f["nodes"][:3]]
            assert nodes == [], f"{view} {scheme} {width}"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        context.close()
