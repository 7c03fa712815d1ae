"""An agent that replaces its history by summaries: its rows, their sizes, and who is credited."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rl.algo import num_distinct
from agentgym_rl.gateway.session.client_defaults import quoted

HEAD = {"role": "system", "content": "You are an agent that keeps its history short."}
TASK = {"role": "user", "content": "Add all the numbers that you are told, one after another."}
SUM_UP = {"role": "user", "content": "Sum up what you know, for yourself."}
NUM_TURNS, EVERY = 24, 6


def _reply(number: int, *, summary: bool) -> str:
    if not summary:
        return f"That makes {number * 17}, as far as I have been told by now."
    return f"I was told {number} numbers.\nTheir sum is {number * 17}, and there are more to come."


def _play(scene, words, session):
    """Turns, with a summary after every sixth: the ids of all replies."""
    ids, history = [], [HEAD, TASK]

    def ask(messages):
        body = asyncio.run(scene.post(session, messages=messages)).body
        ids.append(body["id"])
        return body["choices"][0]["message"]

    for turn in range(NUM_TURNS):
        history += [ask(history), {"role": "user", "content": f"And {turn + 2}?"}]
        if turn % EVERY == EVERY - 1:
            summary = ask([*history, SUM_UP])["content"]
            told = f"This is what was before:\n\n{summary}\n\nGo on."
            history = [HEAD, TASK, {"role": "user", "content": told}]
    return ids


@pytest.fixture
def played(stage, spell, words):
    kinds = [False] * EVERY + [True]
    texts = [_reply(n, summary=kinds[n % len(kinds)]) for n in range(NUM_TURNS * 2)]
    scene = stage([spell.bytewise(text + words.END) for text in texts])
    session = scene.open()
    return scene, session, _play(scene, words, session)


def test_each_stretch_is_a_row_that_follows_from_the_one_before(played, words):
    scene, session, _ = played
    record = session.record()
    words.check_exact(record.rows, scene.engine.journal, num_rows=NUM_TURNS // EVERY)
    assert [row.parent for row in record.rows] == [-1, 0, 1, 2]
    assert [row.lineage for row in record.rows] == [0] * 4
    assert record.counters["forks_summary"] == record.counters["forks"] == 3
    assert record.counters["trained_tokens"] == record.counters["sampled_tokens"]


def test_rows_have_little_more_than_was_sampled_and_told(played):
    _, session, _ = played
    record = session.record()
    rows = [row.tokens for row in record.rows]
    told = num_distinct(rows) - record.counters["sampled_tokens"]
    assert told > 0
    assert sum(map(len, rows)) <= 1.2 * (record.counters["sampled_tokens"] + told)


def test_a_summary_is_credited_with_what_comes_after_it(played):
    _, session, ids = played
    session.reward(1.0, turn=ids[-1])
    returns = session.record().credit.turn_returns(discount=0.5)
    # Turns 0 to 5, the summary 6, and so on: each is one step before the next.
    assert returns == [0.5 ** (len(ids) - 1 - turn) for turn in range(len(ids))]


LONG = "The first line of a long text,\nand then the second line of it."


def _turns(*texts):
    return [SimpleNamespace(message={"content": text}) for text in texts]


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_quote_is_found_wherever_it_stands(before, after):
    other, turn = turns = _turns("x" * 50, LONG)
    messages = [{"role": "user", "content": before + LONG + after}]
    assert quoted(turns, messages) is turn is not other


def test_only_enough_of_a_text_is_a_quote():
    (turn,) = turns = _turns(LONG)
    for text, found in (
        ("The first line of a long text,", None),
        ("and then the second line of it.", turn),
        (LONG.replace("\n", " "), turn),
        ("", None),
    ):
        assert quoted(turns, [{"role": "user", "content": text}]) is found
    for length, is_found in ((11, False), (12, True)):
        text = "\n".join(letter * length for letter in "abc")
        assert bool(quoted(_turns(text), [{"role": "user", "content": text}])) is is_found
    own = {"role": "assistant", "content": LONG}
    assert quoted(turns, [own]) is None
    assert quoted(turns, [own, {"role": "user", "content": LONG}]) is None  # it is still there
    assert quoted(_turns("Yes."), [{"role": "user", "content": "Yes."}]) is None
    assert quoted(_turns(None), [{"role": "user", "content": None}]) is None
    parts = [{"role": "user", "content": [{"type": "text", "text": LONG}]}]
    assert quoted([*turns, *_turns(*["other"] * 7)], parts) is turn
    assert quoted([*turns, *_turns(*["other"] * 8)], parts) is None
