"""Literal special tokens are found as one after the other would be, in pieces of a text."""

import re
from itertools import chain

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentgym_rl.core import chat as chats
from agentgym_rl.core import is_rendered
from agentgym_rl.core.chat import PIECE
from agentgym_rl.gateway.template import literals
from agentgym_rl.gateway.template.literals import BREAK, Literals

MILLION = 1_000_000
TOKENS = st.lists(st.text("<|ab>", min_size=1, max_size=6), max_size=12)
TEXTS = st.text("<|ab>", max_size=60)
PIECES = (
    *("<|im_start|>", "<|im_", "end|>", "<|", "|>", "<start_of_turn>model", "<s>", "[/INST]"),
    *("[INST]", "assistant", "ASSISTANT", "bot", "model\n", "ma\u0131l", "\u0131", "a", "s", " "),
)
SAID = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


class Recorder:
    """A pattern that notes how many characters it is given at once."""

    def __init__(self, pattern):
        self.pattern, self.sizes, self.match = pattern, [], pattern.match

    def finditer(self, text, start, end):
        self.sizes.append(end - start)
        return self.pattern.finditer(text, start, end)

    def search(self, text):
        self.sizes.append(len(text))
        return self.pattern.search(text)


def _spans(matches):
    return [match.span() for match in matches]


@settings(max_examples=300, deadline=None)
@given(tokens=TOKENS, text=TEXTS, size=st.integers(1, 70))
@example(tokens=["ab", "a"], text="||ab", size=1)
def test_tokens_are_found_as_by_their_alternation(tokens, text, size):
    plain = re.compile("|".join(map(re.escape, tokens)) or "(?!)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(literals, "PIECE", size)
        found = chain.from_iterable(Literals(tokens).found(text))
        assert _spans(found) == _spans(plain.finditer(text))


def test_tokens_that_begin_with_each_other_are_found_however_many():
    tokens = ["a" * length for length in range(500, 0, -1)]
    [found] = Literals(tokens).found("a" * 700 + "b" + "a" * 40)
    assert _spans(found) == [(0, 500), (500, 700), (701, 741)]
    [found] = Literals(tokens[::-1]).found("aab")
    assert _spans(found) == [(0, 1), (1, 2)]


def test_the_common_beginning_of_a_thousand_tokens_is_read_once():
    """Not for each of them, at each character of a text that repeats it."""
    tokens = [f"<|reserved_special_token_{number}|>" for number in range(1_000)]
    one = Literals(tokens)
    assert one.pattern.pattern.count("token") == 1
    assert max(map(len, re.findall(r"[^()|?]+", one.pattern.pattern))) < 60
    assert all(one.pattern.fullmatch(token) for token in tokens)
    assert not one.begins("<|reserved_special_token_1000|>")


def test_a_tokenizer_without_special_tokens_changes_no_text():
    assert Literals([]).broken("<s>") == "<s>"
    assert not Literals([""]).begins("")


@settings(max_examples=300, deadline=None)
@given(said=SAID, size=st.integers(1, 70))
def test_a_rendered_prompt_is_found_in_pieces_as_in_one(said, size):
    whole = chats._BEGINS.match(said.lstrip()) and chats._ANSWERS.search(said)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chats, "PIECE", size)
        assert is_rendered(said) == bool(whole)


def test_a_word_that_a_piece_cuts_opens_no_turn():
    said = "<s>" + "." * 70 + "<s>botany"
    for size in range(1, len(said)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chats, "PIECE", size)
            assert not is_rendered(said)
    assert is_rendered(said.replace("botany", "bot"))
    assert is_rendered("<s><s>a\u0131")  # another letter of the same word


@pytest.mark.parametrize("text", ["<|im_end|>", "<|im_end|>\u00e9", "<|im_end|>model", "<|"])
def test_no_search_of_a_long_message_takes_it_at_once(chat, monkeypatch, text):
    """One piece after the other: a search keeps all other threads from running."""
    special, answers = Recorder(chat._special.pattern), Recorder(chats._ANSWERS)
    monkeypatch.setattr(chat._special, "pattern", special)
    monkeypatch.setattr(chats, "_ANSWERS", answers)
    monkeypatch.setattr(chat, "_warned_rendered", False)
    said = text * (MILLION // len(text)) + "z"
    shown = chat._disarmed({"role": "user", "content": said})["content"]
    assert shown == said.replace("<|im_end|>", f"<{BREAK}|im_end|>")
    assert sum(special.sizes) >= MILLION
    assert max(special.sizes + answers.sizes) <= PIECE + 64
