"""What the engine is fed, against what the template would write anew."""

import asyncio
import copy

import pytest
from families import FAMILIES, Family

from agentgym_rl.config import GatewayConfig

KINDS = ("whitespace", "thinking", "arguments", "spelling", "other")


def _scene(words, chat, said, fraction=1.0):
    config = GatewayConfig(canary_fraction=fraction, tool_parser="hermes")
    return words.Stage(chat, said, config=config)


def _found(scene, session):
    counters = scene.gateway.close_session(session).counters
    return counters["canary_turns"], [kind for kind in KINDS if counters[f"canary_{kind}"]]


def _echo_twice(words, chat, said, change=lambda message: None, observation="12"):
    """Two turns; the client changes the first reply as it sends it back."""
    scene = _scene(words, chat, said)
    session, tools = scene.open(), [words.CALCULATOR]
    first = asyncio.run(scene.post(session, messages=words.FIRST, tools=tools)).message
    echo = copy.deepcopy(first)
    change(echo)
    more = [*words.FIRST, echo, *words.observe(first, observation)]
    asyncio.run(scene.post(session, messages=more, tools=tools))
    return _found(scene, session)


def _respaced(message):
    message["tool_calls"][0]["function"]["arguments"] = '{ "expression":  "3*4" }'


def _stripped(message):
    message["content"] = message["content"].strip()


def test_what_is_the_same_is_no_mismatch(chat, spell, words):
    said = [spell.canonical(text + words.END) for text in (words.CALL, words.ANSWER)]
    assert _echo_twice(words, chat, said) == (1, [])


@pytest.mark.parametrize(
    ("text", "change", "kind"),
    [
        ("CALL", _respaced, "arguments"),
        ("Yes.\n\n", _stripped, "whitespace"),
        ("<think>hm</think>Yes.", lambda m: m.update(content="Yes."), "thinking"),
    ],
    ids=["arguments", "whitespace", "thinking"],
)
def test_the_first_difference_says_what_kind_it_is(chat, spell, words, text, change, kind):
    text = words.CALL if text == "CALL" else text
    said = [spell.canonical(each + words.END) for each in (text, words.ANSWER)]
    assert _echo_twice(words, chat, said, change) == (1, [kind])


def test_other_tokens_of_the_same_text(chat, spell, words):
    said = [spell.bytewise(words.ANSWER + words.END)] * 2
    assert _echo_twice(words, chat, said) == (1, ["spelling"])


def test_a_thought_before_a_call_is_a_thought_although_both_tags_begin_alike(words):
    """The prompt opens a thought, which the template leaves out of the history."""
    source = FAMILIES["chatml"].source.replace("assistant\n' }}", "assistant\n<think>\n' }}")
    family = Family(source)
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "3*4"}}</tool_call>'
    said = [family.tokenizer.encode(text + "<|im_end|>").ids for text in (call, "Twelve.")]
    assert _echo_twice(words, family.chat, said) == (1, ["thinking"])


def test_text_that_the_template_hides(words):
    family = FAMILIES["llama3"]
    texts = ["Let me see.\n" + words.CALL + "<|eot_id|>", "12.<|eot_id|>"]
    said = [family.tokenizer.encode(text).ids for text in texts]
    assert _echo_twice(words, family.chat, said) == (1, ["other"])


def test_long_conversations_are_compared_in_a_thread(chat, spell, words):
    slow = words.Say(spell.canonical(words.ANSWER + words.END), delay_s=0.02)
    said = [spell.bytewise(words.ANSWER + words.END), slow]
    long = "12 " * 700
    scene = words.Stage(chat, said, config=GatewayConfig(canary_fraction=1), max_model_len=9000)
    session = scene.open()
    asyncio.run(scene.play(session, [long * 2]))
    assert _found(scene, session) == (1, ["spelling"])


def test_the_same_turns_are_drawn_each_time(chat, spell, words):
    def drawn(fraction):
        scene = _scene(words, chat, lambda _: spell.canonical("a" + words.END), fraction)
        session = scene.open()
        asyncio.run(scene.play(session, ["b"] * 20))
        return _found(scene, session)[0]

    assert (drawn(0.0), drawn(1.0)) == (0, 20)
    assert 0 < drawn(0.5) == drawn(0.5) < 20
