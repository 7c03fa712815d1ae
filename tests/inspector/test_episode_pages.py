"""The table of episodes, an episode, a group and a game, driven in a real Chromium."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from arl_inspect.export import write_page
from made_runs import make_episode, make_row, make_run
from test_page import HOSTILE, aside, at, call, chromium, expect, opened, rows, served

from agentgym_rl.core import Outcome, Row
from agentgym_rl.core.extensions import register_extension

__all__ = ["chromium"]
pytestmark = pytest.mark.slow
NAME = "run (1) 'q' 50%"
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # noqa: E501
BIG = "12345678901234567890"
"""A number that JavaScript cannot hold exactly."""


def long_row(given: int, versions: list[int]) -> Row:
    """A row of `given` tokens of a prompt, and one sampled token of each version."""
    short, count = make_row(), given + len(versions)
    is_sampled = np.arange(count) >= given
    arrays = {
        name: np.resize(getattr(short, name), count)
        for name in ("tokens", "behavior_logprobs", "temperatures", "times_s")
    }
    arrays["policy_versions"] = np.array([-1] * given + versions, np.int32)
    arrays["admitted_versions"] = arrays["policy_versions"]
    arrays["turn_ids"] = np.where(is_sampled, 0, -1).astype(np.int32)
    return replace(short, **arrays, loss_mask=is_sampled)


def talk(question: str, answer: str, *, tools: bool = False):
    said = [{"role": "user", "content": question}]
    if tools:
        given = {"a": int(BIG), "b": ["x", {}]}
        said += [
            {"role": "assistant", "content": None, "tool_calls": [call("c0", "look_up", given)]},
            {"role": "tool", "tool_call_id": "c0", "content": json.dumps({"found": int(BIG)})},
        ]
    return [*said, {"role": "assistant", "content": answer}]


def seat(name: str, reward: float, replies: dict[float, str]):
    """The seat of a game: its replies by the times at which they began."""
    rows = [
        replace(make_row(start_s=time_s), turn_ids=np.where(make_row().turn_ids < 0, -1, turn))
        for turn, time_s in enumerate(replies)
    ]
    said = [it for text in replies.values() for it in talk(f"board before {text}", text)]
    made = {"rows": rows, "messages": said, "reward": reward, "num_turns": len(rows)}
    return make_episode("game", "g4", seat=name, player="policy", **made)


def groups():
    picture = [
        {"type": "text", "text": f"what is it? {HOSTILE}"},
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image_url", "image_url": {"url": "http://elsewhere.invalid/spy.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg onload='hacked=1'/>"}},
    ]
    parts = {"correct": 1.0, HOSTILE: 0.5}
    right = {"messages": talk("how many cats?", "9 lives", tools=True), "verdict": "ok"}
    wrong = {"reward": 0.0, "verdict": f"wrong {HOSTILE}", "outcome": Outcome.TRUNCATED}
    unlike = {"messages": talk("how many cats?", "seven dogs"), "reward_parts": {"correct": 0.0}}
    long = "\n".join(f"line {k}" for k in range(500))
    both = [
        seat("x", 1.0, {100.0: "first", 300.0: "third"}),
        seat("o", -1.0, {200.0: "second", 400.0: "fourth"}),
    ]
    many = [make_episode(f"g5-{k}", "g5", messages=talk("row", str(k))) for k in range(300)]
    return {
        "g0": [
            make_episode("g0-0", "g0", reward=0.5, **right, env_id="tools"),
            make_episode("g0-1", "g0", **wrong | unlike),
            make_episode("g0-2", "g0", **right, reward_parts=parts),
        ],
        "g1": [make_episode("g1-0", "g1", messages=[{"role": "user", "content": picture}])],
        "g2": [make_episode("g2-0", "g2", messages=talk("long?", long), rows=[long_row(90, [3])])],
        "g6": [make_episode("g6-0", "g6", messages=talk("XO3", "3"), env_id="squares-v0")],
        "g3": [make_episode("g3-0", "g3", rows=[long_row(3, [7, 8, 8])])],
        "g4": [
            make_episode("game", "g4", reward=0.0, seats=both, messages=[]),
            make_episode("other", "g4", reward=0.0, seats=both[::-1], messages=[]),
        ],
        "g5": many,
    }


def squares(message, task):
    """A view: the words of the user as a table, with a picture and hostile text."""
    is_board = message["role"] == "user"
    pixel = base64.b64decode(PIXEL.partition(",")[2])
    return [[[*message["content"]], [HOSTILE]], HOSTILE, pixel] if is_board else None


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    register_extension("episode_views", "squares", squares)
    return aside(make_run, tmp_path_factory.mktemp("made") / "runs" / NAME, groups()).parent


@pytest.fixture(scope="module")
def url(made):
    with served(made) as url:
        yield url


@pytest.fixture
def page(chromium, url):
    with opened(chromium, url) as page:
        yield page


@contextmanager
def view(chromium, url: str, *, width: int, scheme: str = "light"):
    with opened(chromium, url, color_scheme=scheme) as page:
        page.set_viewport_size({"width": width, "height": 860})
        yield page


def see(page, name: str, about: str = "", options: str = "") -> None:
    """Open a view of the run."""
    home = page.url.split("#")[0]
    page.goto("about:blank")
    page.goto(f"{home}#{name}={quote(NAME + about, safe='')}{options}")


def number(page, text: str) -> None:
    expect(page.get_by_role("status").first).to_have_text(text)


def test_a_row_says_what_happened(page):
    see(page, "episodes", options="&group=g0&sort=row")
    number(page, "3 episodes")
    line = page.get_by_role("row").nth(1)
    for text in ("how many cats?", "9 lives", "ok", "0.500"):
        expect(line).to_contain_text(text)
    expect(page.get_by_role("row").nth(2)).to_contain_text(f"wrong {HOSTILE}")
    expect(page.get_by_role("row").nth(2)).to_contain_text("truncated")
    expect(page.get_by_role("row").nth(3).locator(".cell-parts")).to_contain_text("correct 1")


def test_words_of_questions_and_replies_are_searched(page):
    see(page, "episodes")
    number(page, "309 episodes")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("CATS dogs")
    page.keyboard.press("Enter")
    number(page, "1 episode")
    at(page, "q=CATS+dogs")
    assert rows(page) == ["g0-1"]
    page.reload()
    number(page, "1 episode")
    expect(page.get_by_role("searchbox")).to_have_value("CATS dogs")


def test_filters_by_seat_and_version(page):
    see(page, "episodes", options="&version=8")
    number(page, "1 episode")
    assert rows(page) == ["g3-0"]
    see(page, "episodes")
    page.get_by_label("seat").select_option("o")
    number(page, "2 episodes")
    assert rows(page) == ["other", "game"]
    expect(page.locator(".cell-parts").first).to_contain_text("x 1")


def test_columns_are_chosen_and_kept_in_the_address(page):
    see(page, "episodes")
    page.get_by_text("columns", exact=True).click()
    page.get_by_label("question").uncheck()
    page.get_by_label("task", exact=True).check()
    at(page, "columns=id.answer.")
    page.reload()
    page.get_by_role("columnheader", name="task").wait_for()
    assert page.get_by_role("columnheader", name="question").count() == 0


def test_the_keyboard_moves_opens_and_comes_back(page):
    see(page, "episodes", options="&group=g0")
    number(page, "3 episodes")
    page.locator(".grid .body a").first.wait_for()
    page.keyboard.press("j")
    expect(page.locator("[data-i='0'] a")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator("[data-i='1'] a")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Episode g0-1").wait_for()
    page.get_by_text("2 of 3").wait_for()
    page.keyboard.press("j")
    page.get_by_role("heading", name="Episode g0-0").wait_for()
    page.get_by_text("3 of 3").wait_for()
    page.keyboard.press("k")
    page.get_by_text("2 of 3").wait_for()
    page.keyboard.press("u")
    expect(page.locator("[data-i='1'] a")).to_be_focused()
    number(page, "3 episodes")
    page.keyboard.press("k")
    expect(page.locator("[data-i='0'] a")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_text("1 of 3").wait_for()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()


def test_previous_and_next_follow_the_filters_and_the_order(page):
    see(page, "episodes", options="&group=g0&sort=-reward")
    page.get_by_role("link", name="g0-2").click()
    page.get_by_text("1 of 3").wait_for()
    page.get_by_role("link", name="next").click()
    page.get_by_role("heading", name="Episode g0-0").wait_for()
    page.get_by_text("2 of 3 · group g0, by reward, descending").wait_for()
    page.get_by_role("link", name="next").click()
    page.get_by_role("heading", name="Episode g0-1").wait_for()
    assert page.get_by_role("link", name="next").count() == 0


def test_the_list_is_shown_where_the_episode_stands_in_it(page):
    see(page, "episode", "/g5-20")
    page.get_by_text("280 of 309").wait_for()
    page.get_by_role("link", name="to the list").click()
    expect(page.locator(".line.chosen a")).to_have_text("g5-20")
    expect(page.locator(".line.chosen")).to_be_in_viewport()


def test_a_result_has_the_name_of_its_tool_and_json_is_laid_out(page):
    see(page, "episode", "/g0-0")
    expect(page.locator(".message.tool .role")).to_contain_text("result of look_up")
    expect(page.locator(".message.tool pre")).to_have_text(f'{{ "found": {BIG} }}')
    laid_out = '{\n  "a": BIG,\n  "b": [\n    "x",\n    {}\n  ]\n}'.replace("BIG", BIG)
    assert page.locator(".call pre").inner_text() == laid_out
    expect(page.locator(".result")).to_contain_text("9 lives")


def test_pictures_are_shown_if_the_message_holds_them(page):
    see(page, "episode", "/g1-0")
    page.locator(".message img").wait_for()
    assert page.locator(".message img").count() == 1
    assert page.locator(".message img").evaluate("it => it.decode().then(() => it.naturalWidth)")
    expect(page.locator(".message")).to_contain_text("http://elsewhere.invalid/spy.png")
    expect(page.locator(".message")).to_contain_text(HOSTILE)


def test_an_environment_shows_its_messages_in_a_form_of_its_own(page):
    see(page, "episode", "/g6-0")
    asked, replied = page.locator(".message.user"), page.locator(".message.assistant")
    expect(asked.locator("td")).to_have_text(["X", "O", "3", HOSTILE])
    assert asked.locator("img").evaluate("it => it.decode().then(() => it.naturalWidth)")
    recorded = asked.locator("pre", has_text="XO3")
    expect(recorded).not_to_be_visible()
    asked.get_by_text("as recorded").click()
    expect(recorded).to_be_visible()
    assert replied.locator("table").count() == 0


def test_long_texts_and_prompts_are_folded_and_can_be_opened(page):
    see(page, "episode", "/g2-0")
    reply = page.locator(".message.assistant")
    expect(reply).not_to_contain_text("line 499")
    reply.get_by_role("button", name="characters").click()
    expect(reply).to_contain_text("line 499")
    tokens = page.locator(".row [data-i]")
    expect(tokens).to_have_count(7)
    page.get_by_role("button", name="84 tokens given").click()
    expect(tokens).to_have_count(91)
    see(page, "episode", "/g2-0")
    page.get_by_label("given tokens too").check()
    expect(tokens).to_have_count(91)
    at(page, "all=1")


def test_versions_have_colours_of_their_own(page):
    see(page, "episode", "/g3-0")
    page.locator(".tokens .legend", has_text="version 7: 1").wait_for()
    page.locator(".tokens .legend", has_text="version 8: 2").wait_for()
    tokens = page.locator(".row .sampled")
    colours = [tokens.nth(i).evaluate("it => it.style.background") for i in range(3)]
    assert colours[1] == colours[2] != colours[0]


def test_the_best_and_the_worst_of_a_group_stand_beside_each_other(page):
    see(page, "group", "/g0")
    members = page.locator(".members article")
    expect(members).to_have_count(2)
    expect(members.nth(0)).to_contain_text("g0-2")
    expect(members.nth(1)).to_contain_text("seven dogs")
    boxes = [members.nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    expect(members.nth(1).locator(".differs")).to_have_text("correct 0 ≠")
    members.nth(0).get_by_label("instead").select_option("g0-0")
    at(page, "left=g0-0")
    page.reload()
    expect(members.nth(0).get_by_role("heading")).to_contain_text("g0-0")
    assert page.locator(".all-members tbody tr").count() == 3


def test_a_game_is_shown_as_it_went(page):
    see(page, "episode", "/game")
    moves = page.locator(".move")
    expect(moves).to_have_count(4)
    replies = page.locator(".move .reply pre").all_inner_texts()
    assert replies == ["first", "second", "third", "fourth"]
    heads = page.locator(".game .seat").all_inner_texts()
    assert ["reward 1" in heads[0], "reward -1" in heads[1]] == [True, True]
    boxes = [moves.nth(i).bounding_box() for i in range(4)]
    lefts = [box["x"] for box in boxes]
    assert [box["y"] for box in boxes] == sorted(box["y"] for box in boxes)
    assert lefts[0] == lefts[2] < lefts[1] == lefts[3], "a column for each seat"


def test_on_a_phone_there_are_cards(chromium, url):
    with view(chromium, url, width=390) as page:
        see(page, "episodes", options="&group=g0&sort=-reward")
        card = page.locator(".card").first
        for text in ("g0-2", "ok", "how many cats?", "9 lives", "reward 1"):
            expect(card).to_contain_text(text)
        page.get_by_label("order").select_option("reward")
        expect(page.locator(".card a").first).to_have_text("g0-1")
        page.locator(".card").first.click()
        page.get_by_role("heading", name="Episode g0-1").wait_for()
        see(page, "group", "/g0")
        boxes = [page.locator(".members article").nth(i).bounding_box() for i in (0, 1)]
        assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]


def test_one_file_has_these_pages_too(chromium, made, tmp_path):
    write_page([made], tmp_path / "run.html", episodes=400)
    with opened(chromium, (tmp_path / "run.html").as_uri()) as page:
        see(page, "episodes", options="&q=cats+%22seven+dogs%22")
        number(page, "1 episode")
        page.get_by_role("link", name="g0-1").click()
        page.get_by_text("1 of 1 · with cats").wait_for()
        see(page, "episodes", options="&seat=x&version=2")
        number(page, "2 episodes")
        page.get_by_role("link", name="game").click()
        expect(page.locator(".move")).to_have_count(4)
        page.get_by_role("link", name="to the list").click()
        expect(page.locator(".line.chosen a")).to_have_text("game")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_all_can_read_these_pages(chromium, url, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    views = [("episodes", "", "&q=cats"), ("episode", "/g0-0", ""), ("episode", "/g1-0", "")]
    views += [
        ("episode", "/game", ""),
        ("group", "/g0", ""),
        ("group", "/g4", ""),
        ("episode", "/g6-0", ""),
    ]
    with view(chromium, url, width=width, scheme=scheme) as page:
        for name, about, options in views:
            see(page, name, about, options)
            page.locator("main :is([role=row] a, .row, .members)").first.wait_for()
            found = axe.run(page).response["violations"]
            nodes = [(f["id"], n["html"][:150]) for f in found for n in f["nodes"][:3]]
            assert nodes == [], f"{name}{about} {scheme} {width}"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name + about
