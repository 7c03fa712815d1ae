"""What an episode is about, in a line, and the words that a search finds."""

from arl_inspect.texts import MOST_CHARS, expected_of, texts_of, words_of

from agentgym_rl.storage.episode_reader import Glance
from tests.kit.cases import cases


@cases(
    "task, expected",
    [
        ({}, ""),
        ({"question": "6*7", "answer": 42}, "42"),
        ({"answer": "", "target": "b"}, "b"),
        ({"reward_model": {"ground_truth": "7"}}, "7"),
        ({"row": {"solution": ["x", "y"]}}, '["x", "y"]'),
    ],
)
def test_the_expected_answer_of_a_task(task, expected):
    assert expected_of(task) == expected


@cases(
    "query, words",
    [("", []), ("Two WORDS", ["two", "words"]), ('a "B c" d', ["a", "b c", "d"]), ('"x', ["x"])],
)
def test_the_words_of_a_search(query, words):
    assert words_of(query) == words


def test_the_texts_of_a_conversation():
    call = {"function": {"name": "calculator", "arguments": '{"x": 1}'}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What\nis it?"}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call, "odd"]},
    ]
    found = texts_of(Glance(messages=messages, verdict="Wrong"), {"answer": "A Cat"})
    assert (found.question, found.expected) == ("What is it?", "A Cat")
    assert found.answer == 'calculator({"x": 1})'
    for word in ("be brief.", "calculator", "wrong", "a cat"):
        assert word in found.everything
    assert "AAAA" not in found.everything


def test_the_texts_of_a_game_are_those_of_its_seats():
    seats = [
        Glance(seat=name, messages=[{"role": "user", "content": "rules"}, said(name)])
        for name in "xo"
    ]
    found = texts_of(Glance(seats=seats), {})
    assert (found.question, found.answer) == ("rules", "I am x | I am o")


def said(name: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"I am {name}"}


def test_long_and_odd_texts():
    odd = Glance(messages=[{"role": "user", "content": {"a": 1}}, {"content": 3}, {}])
    assert texts_of(odd, {"question": None}).question == '{"a": 1}'
    long = Glance(messages=[{"role": "user", "content": "word " * 1000}])
    assert len(texts_of(long, {}).question) == MOST_CHARS + 1
