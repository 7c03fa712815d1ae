"""What the tokens of a reply were chosen from under a grammar."""

import json

import numpy as np
import pytest

from agentgym_rl.core.token_records import FORCED, unpacked_set
from agentgym_rl.models.resolve import BUNDLED
from agentgym_rl.runtime import GrammarCompiler
from agentgym_rl.runtime.grammars import GrammarError

END = 2
GRAMMAR = 'start: "{" /[ab]/ /[cd]/ "}" <[2]>'


@pytest.fixture(scope="module")
def compiler():
    text = (BUNDLED / "tokenizer.json").read_text
    return GrammarCompiler(text, vocab_size=640, eos_ids=[END])


def _drawn(constraint, seed: int) -> list[int]:
    """A reply of any of the allowed tokens."""
    rng, found = np.random.default_rng(seed), []
    while not found or found[-1] != END:
        found.append(int(rng.choice(np.flatnonzero(constraint.allowed()))))
        constraint.accept(found[-1])
    return found


def test_choices_are_the_sets_that_were_allowed(compiler):
    for seed in range(20):
        reply = _drawn(compiler.begin(GRAMMAR), seed)
        choices, constraint = compiler.begin(GRAMMAR).choices(reply), compiler.begin(GRAMMAR)
        assert len(choices.index) == len(reply)
        assert choices.num_forced < len(reply)
        for index, token in zip(choices.index, reply, strict=True):
            allowed = np.flatnonzero(constraint.allowed()).tolist()
            if index == FORCED:
                assert allowed == [token]
            else:
                bits = np.unpackbits(unpacked_set(choices.sets[index]), bitorder="little")
                assert np.flatnonzero(bits).tolist() == allowed
            constraint.accept(token)


def test_a_set_that_is_allowed_often_is_kept_once(compiler):
    grammar = "start: /[ab]*/ <[2]>"
    reply = [*_drawn(compiler.begin('start: "aaaaaaaa" <[2]>'), 0)[:-1], END]
    choices = compiler.begin(grammar).choices(reply)
    assert len(choices.sets) == 1
    assert set(choices.index.tolist()) == {0}


def test_a_reply_of_another_grammar_has_no_choices(compiler):
    reply = _drawn(compiler.begin(GRAMMAR), 0)
    assert compiler.begin('start: "x" <[2]>').choices(reply) is None
    assert compiler.begin(GRAMMAR).choices([*reply[:2], 10**6]) is None


def test_what_is_no_grammar_is_an_error(compiler):
    for text in ("start: x", "nothing", 'start: %json {"type": "nothing"}'):
        with pytest.raises(GrammarError, match="cannot be followed"):
            compiler.begin(text)


def test_a_tokenizer_that_llguidance_cannot_read_is_an_error_with_the_reason():
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    long = {**tokenizer["added_tokens"][-1], "id": 640, "content": "x" * 1025}
    tokenizer["added_tokens"].append(long)
    compiler = GrammarCompiler(lambda: json.dumps(tokenizer), vocab_size=641, eos_ids=[END])
    for _ in range(2):
        with pytest.raises(GrammarError, match="1024 bytes"):
            compiler.begin(GRAMMAR)
