"""The pages Runs and Curves of `arl inspect`, driven in a real Chromium."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from arl_inspect.export import write_page
from made_runs import CONFIG, make_episode, make_run
from test_page import HOSTILE, WAIT_MS, aside, at, chromium, expect, opened, served

from agentgym_rl.gateway.session.session import COUNTERS

__all__ = ["chromium"]
pytestmark = pytest.mark.slow
NAMES = ("plain", "with space", "50% #1 'q' \"d\"", "ünï, 学 & a+b?=c", HOSTILE.replace("/", "|"))
RUN_METRICS = {"reward/mean": 0.1, "loss": 1.0, "reward/format": 0.5, "episode/tool_calls": 2.0}
RUN_METRICS |= {"episode/board_size": 3.0}


def write_lines(file: Path, records) -> None:
    file.write_text("".join(json.dumps(it) + "\n" for it in records))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Runs of difficult names, each with metrics of its own, evaluations and a seed."""
    place = tmp_path_factory.mktemp("made") / "runs"
    for k, name in enumerate(NAMES):
        run = aside(make_run, place / name, {"g0": [make_episode("g0-0", "g0")]})
        (run / "config.toml").write_text(f"seed = {k}\n{CONFIG}")
        rows = [
            {"step": n, **{it: value * (n + k) for it, value in RUN_METRICS.items()}}
            for n in range(6)
        ]
        write_lines(run / "metrics.jsonl", rows)
        held_out = {"status": "done", "eval/reward_low": 0.1 * k, "eval/reward_high": 0.1 * k + 0.3}
        checks = [{"version": n, "eval/reward": 0.1 * k + 0.1, **held_out} for n in (0, 3)]
        write_lines(run / "evaluations.jsonl", checks)
    return place


@pytest.fixture
def page(chromium, made):
    with served(made) as url, opened(chromium, url) as page:
        page.locator(".runs tbody tr").first.wait_for()
        yield page


@contextmanager
def view(chromium, url: str, *, width: int = 1280, scheme: str = "light"):
    with opened(chromium, url, color_scheme=scheme) as page:
        page.set_viewport_size({"width": width, "height": 860})
        yield page


def names(page) -> list[str]:
    return page.locator(".runs .run-name").all_inner_texts()


def titles(page) -> list[str]:
    return page.locator(".chart .title").all_inner_texts()


def test_runs_are_searched_sorted_and_compared_by_keys(page):
    assert sorted(names(page)) == sorted(NAMES)
    first = page.locator(".runs tbody tr", has_text="with space")
    assert "[0.100, 0.400]" in first.inner_text()
    assert first.get_by_role("img", name="reward from 0.100 to 0.600 over 6 batches").count() == 1
    page.get_by_role("button", name="held-out reward").click()
    at(page, "sort=-held-out")
    assert names(page) == list(reversed(NAMES))
    page.keyboard.press("/")
    page.keyboard.type("math space")
    expect(page.locator(".runs .run-name")).to_have_count(1, timeout=WAIT_MS)
    page.keyboard.press("Escape")
    expect(page.locator(".runs .run-name")).to_have_count(5, timeout=WAIT_MS)
    page.keyboard.press("ArrowDown")
    expect(page.locator(".run-name").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("x")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("x")
    page.get_by_role("link", name="Compare 2 runs").wait_for()
    page.reload()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.get_by_role("heading", name="Curves of 2 runs").wait_for()
    page.go_back()
    expect(page.locator(".run-name").first).to_have_text(NAMES[-1], timeout=WAIT_MS)
    page.locator(".run-name").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=f"Curves of {NAMES[-1]}").wait_for()


def test_notes_are_written_in_the_page_and_are_inert(chromium, tmp_path):
    run = aside(make_run, tmp_path / "runs" / "first", {"g0": [make_episode("g0-0", "g0")]})
    with served(run.parent) as url, opened(chromium, url) as page:
        page.get_by_role("button", name="edit notes and tags of first").click()
        expect(page.get_by_label("tags, separated")).to_be_focused()
        page.keyboard.type(f"base, {HOSTILE[:30]}")
        page.get_by_label("notes", exact=True).fill(f"mine {HOSTILE}")
        page.get_by_role("button", name="Save").click()
        page.get_by_text(f"mine {HOSTILE}").wait_for()
        kept = {"notes": f"mine {HOSTILE}", "tags": ["base", HOSTILE[:30]]}
        assert json.loads((run / "notes.json").read_text()) == kept
        page.get_by_role("button", name="base").click()
        at(page, "q=base")
    with served(run.parent, read_only=True) as url, opened(chromium, url) as page:
        page.get_by_text(f"mine {HOSTILE}").wait_for()
        assert page.get_by_role("button", name="edit notes").count() == 0


def test_notes_that_are_refused_stay_in_the_form(chromium, made):
    with served(made) as url:
        page = chromium.new_page()
        page.goto(url)
        page.get_by_role("button", name="edit notes and tags of plain").click()
        page.get_by_label("tags, separated").fill("x" * 41)
        page.keyboard.press("Control+Enter")
        page.get_by_role("alert").get_by_text("40 characters at most").wait_for()
        assert page.get_by_label("tags, separated").input_value() == "x" * 41
        page.keyboard.press("Escape")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.close()


def test_a_failed_run_shows_its_error(chromium, tmp_path):
    run = aside(make_run, tmp_path / "runs" / "first", {"g0": [make_episode("g0-0", "g0")]})
    end = {"state": "failed", "message": f"KeyError: 'x' {HOSTILE}"}
    (run / "run.json").write_text(json.dumps({"kind": "train", "end": end}))
    with served(run.parent) as url, opened(chromium, url) as page:
        page.get_by_text(f"KeyError: 'x' {HOSTILE}", exact=True).wait_for()
        assert page.locator(".badge.failed").inner_text() == "failed"
        page.get_by_role("link", name="first").click()
        page.locator(".legend-runs .failure").get_by_text("KeyError").wait_for()


def test_the_page_knows_what_every_run_counts(chromium, made):
    counted = sorted(f"episode/{name}" for name in COUNTERS)
    with served(made) as url, opened(chromium, url) as page:
        found = page.evaluate(
            "async names => (await import('/metrics.js')).usualOf(new Set(names))",
            [*counted, "episode/canary_other", "episode/mine", "reward/mean", "reward/mine"],
        )
    assert found == ["reward/mean", "episode/mine", "reward/mine"]


def test_any_metric_is_found_and_the_choice_is_in_the_address(page):
    page.locator(".runs .run-name", has_text="plain").click()
    page.locator(".chart canvas").first.wait_for()
    usual = ["Reward of training episodes", "Held-out reward", "episode/board_size"]
    assert titles(page) == [*usual, "reward/format", "Loss"]
    page.keyboard.press("/")
    page.keyboard.type("calls")
    page.get_by_role("button", name="only these").click()
    expect(page.locator(".chart .title")).to_have_text(["episode/tool_calls"], timeout=WAIT_MS)
    page.get_by_label("search metrics").fill("loss")
    page.keyboard.press("Enter")
    expect(page.locator(".chart .title")).to_have_text(["episode/tool_calls", "Loss"])
    page.get_by_label("smoothing").fill("5")
    page.get_by_text("mean of 5 batches").wait_for()
    page.reload()
    page.get_by_text("mean of 5 batches").wait_for()
    assert titles(page) == ["episode/tool_calls", "Loss"]
    chart = page.get_by_role("img", name="episode/tool_calls")
    chart.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".newest", has_text="batch 0").first.wait_for()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".newest").first).to_have_text("batch 12", timeout=WAIT_MS)
    page.get_by_label("search metrics").fill("")
    page.get_by_role("button", name="none").click()
    page.get_by_text("No metric is chosen").wait_for()
    page.get_by_role("button", name="usual").click()
    expect(page.locator(".chart")).to_have_count(5, timeout=WAIT_MS)


def test_compared_runs_share_a_legend_with_the_keys_that_differ(page):
    page.get_by_role("button", name="choose all").click()
    page.get_by_role("link", name="Compare 5 runs").click()
    page.get_by_role("heading", name="Curves of 5 runs").wait_for()
    legend = page.locator(".legend-runs")
    expect(legend.locator("thead th")).to_have_text(
        ["shown", "run", "state", "reward", "held-out", "seed"], timeout=WAIT_MS
    )
    assert sorted(legend.locator("tbody th a").all_inner_texts()) == sorted(NAMES)
    strokes = legend.locator(".line-sample line")
    drawn = [strokes.nth(i).get_attribute("style") for i in range(5)]
    assert len(set(drawn)) == 5
    assert page.locator(".u-legend").count() == 0
    assert page.locator(".chart").first.locator(".newest b").count() == 5
    page.get_by_label(f"show {NAMES[1]}").uncheck()
    expect(page.locator(".chart").first.locator(".newest b")).to_have_count(4, timeout=WAIT_MS)
    at(page, f"hide={quote(NAMES[1])}".replace("%20", "+"))


def test_a_living_run_shows_what_is_left(chromium, tmp_path):
    import fcntl

    run = aside(make_run, tmp_path / "runs" / "first", {"g0": [make_episode("g0-0", "g0")]})
    write_lines(run / "metrics.jsonl", [{"step": 0, "reward/mean": 0.5, "time/step": 60.0}])
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with served(run.parent) as url, opened(chromium, url) as page:
            page.get_by_text("2 min left").wait_for()
            assert page.get_by_role("progressbar").get_attribute("value") == str(1 / 3)
            page.get_by_role("link", name="first").click()
            page.get_by_text("2 min left").wait_for()
            more = {"step": 1, "reward/mean": 0.75, "time/step": 60.0}
            with (run / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(more) + "\n")
            page.get_by_text("1 min left").wait_for()
            expect(page.locator(".newest b").first).to_have_text("0.750", timeout=WAIT_MS)


def test_the_page_of_one_file_has_runs_of_every_name(chromium, made, tmp_path):
    write_page([made], tmp_path / "out.html")
    with opened(chromium, (tmp_path / "out.html").as_uri()) as page:
        for name in NAMES:
            page.locator(".run-name").get_by_text(name, exact=True).click()
            page.get_by_role("heading", name=f"Curves of {name}", exact=True).wait_for()
            page.locator(".chart canvas").first.wait_for()
            page.get_by_role("link", name="episodes").click()
            page.get_by_role("heading", name=f"Episodes of {name}").wait_for()
            page.get_by_role("link", name="runs", exact=True).click()
        assert page.get_by_role("button", name="edit notes").count() == 0
        page.get_by_role("button", name="choose all").click()
        page.get_by_role("link", name="Compare 5 runs").click()
        page.locator(".chart canvas").first.wait_for()


def test_links_of_earlier_versions_still_compare(page):
    page.goto(page.url.split("#")[0] + "#curves=plain,with%20space")
    page.get_by_role("heading", name="Curves of 2 runs").wait_for()
    page.get_by_role("link", name="timeline").click()
    page.get_by_role("heading", name="Timeline of plain", exact=True).wait_for()
    page.goto(page.url.split("#")[0] + "#curves=plain%2Fnone")
    page.get_by_text("no run 'none' here").first.wait_for()
    page.locator(".chart canvas").first.wait_for()


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)],
    ids=str,
)
def test_nothing_is_found_by_axe_and_nothing_is_wider_than_the_page(chromium, made, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    several = quote("/".join(NAMES), safe="")
    with served(made) as url:
        for hash in ("", f"#curves={quote(NAMES[2])}&smooth=3", f"#curves={several}"):
            with view(chromium, url + hash, width=width, scheme=scheme) as page:
                page.locator("main :is(.runs tbody tr, .chart canvas)").first.wait_for()
                if not hash:
                    page.get_by_role("button", name="edit notes").first.click()
                found = axe.run(page).response["violations"]
                assert [(f["id"], n["html"][:150]) for f in found for n in f["nodes"][:3]] == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width, unquote(hash)
