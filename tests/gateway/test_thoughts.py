"""Thoughts: apart from the content, in the reply, in the stream, and in the session's tree."""

import asyncio
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import CUTS, Read, check_cuts, read, texts

from agentgym_rl.config import GatewayConfig
from agentgym_rl.gateway import AgentClients, Reasoning, ToolCall, call_formats
from agentgym_rl.gateway.parsers import TextParser
from agentgym_rl.gateway.parsers.think import ThinkParser
from tests.kit.cases import cases

FORMATS = call_formats()

BLOCK = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
CALL = ToolCall("f", '{"x": 1}')
HERMES, LLAMA = (partial(FORMATS[family], ()) for family in ("hermes", "llama3_json"))


def _think(text, *, opened=False, inner=HERMES):
    return read(ThinkParser(inner(), opened=opened), text)


@cases(
    "text, shown",
    [
        ("<think>\nHm.\n\nYes.\n</think>\n\nSo.\n", Read("So.\n", reasoning="Hm.\n\nYes.")),
        (" \n<think>Hm.</think>So.", Read("So.", reasoning="Hm.")),
        ("<think>\n\n</think>\n\nSo.", Read("So.")),
        ("<think>\nHm.\n", Read(reasoning="Hm.")),
        ("<think>Hm.</thi", Read(reasoning="Hm.</thi")),
        ("<think>Hm.</think>\n\n", Read(reasoning="Hm.")),
        ("<thin", Read("<thin")),
        ("So. <think>x</think>", Read("So. <think>x</think>")),
        ("So.</think> x", Read("So.</think> x")),
        ("<think>a</think>b <think>c</think>", Read("b <think>c</think>", reasoning="a")),
        (f"<think>\nHm.\n</think>\n\nI call\n{BLOCK}", Read("I call", (CALL,), "Hm.")),
        (f"<think>Or {BLOCK}?</think>{BLOCK}", Read("", (CALL,), f"Or {BLOCK}?")),
        (f"<think>Hm.\n{BLOCK}", Read("", (CALL,), "Hm.")),
        ("<think>In <tool_call> tags?", Read(reasoning="In <tool_call> tags?")),
        (" \n", Read(" \n")),
        ("", Read()),
    ],
)
def test_what_is_thought_and_what_is_said(text, shown):
    assert _think(text) == shown
    check_cuts(lambda: ThinkParser(HERMES(), opened=False), text, [3, 1, 4, 1, 5, 9, 2, 6])


@cases(
    "text, shown",
    [
        ("Hm.\n</think>\n\nSo.", Read("So.", reasoning="Hm.")),
        ("\n\n</think>\n\nSo.", Read("So.")),
        ("<think>\nHm.</think>So.", Read("So.", reasoning="Hm.")),
        ("Hm. <think> Yes.", Read(reasoning="Hm. <think> Yes.")),
        (f"Hm.\n{BLOCK}", Read("", (CALL,), "Hm.")),
        (" \n", Read()),
    ],
)
def test_a_thought_that_the_prompt_has_opened(text, shown):
    assert _think(text, opened=True) == shown
    check_cuts(lambda: ThinkParser(HERMES(), opened=True), text, [3, 1, 4, 1, 5, 9, 2, 6])


def test_thoughts_stream_and_only_what_may_be_a_tag_waits():
    parser = ThinkParser(HERMES(), opened=False)
    assert parser.feed("<thi") == []
    assert parser.feed("nk>\nHm") == [Reasoning("Hm")]
    assert parser.feed(" so. ") == [Reasoning(" so.")]
    assert parser.feed("a <b> </") == [Reasoning(" a <b>")]
    assert parser.feed("i> ") == [Reasoning(" </i>")]
    assert parser.feed("</think>\n") == []
    assert parser.feed("\nYes") == ["Yes"]


def test_without_tools_a_call_in_a_thought_is_thought():
    assert _think(f"<think>{BLOCK}", inner=TextParser) == Read(reasoning=BLOCK)


PIECES = ("<think>", "</think>", "</th", "\n", " ", "hi", "<", "<tool_call>", "</tool_call>", BLOCK)


@settings(max_examples=400, deadline=None)
@given(
    text=texts(*PIECES, "<|python_tag|>"),
    cuts=CUTS,
    opened=st.booleans(),
    inner=st.sampled_from([HERMES, LLAMA, TextParser]),
)
@pytest.mark.slow
def test_streaming_changes_nothing(text, cuts, opened, inner):
    check_cuts(lambda: ThinkParser(inner(), opened=opened), text, cuts)


# --- through the endpoint

THOUGHT = "<think>\nThree fours.\n</think>\n\n"
BOTH = {"reasoning_content": "Three fours.", "reasoning": "Three fours."}


@pytest.mark.parametrize("opened", [False, True], ids=["unopened", "opened"])
def test_a_message_has_its_thought_under_both_names(stage, spell, words, thinker, opened):
    text = (THOUGHT.removeprefix("<think>\n") if opened else THOUGHT) + "Twelve."
    scene = stage([spell.canonical(text + words.END)], chat=thinker(opened=opened))
    message = asyncio.run(scene.post(scene.open(), messages=words.FIRST)).message
    assert message == {"role": "assistant", "content": "Twelve.", **BOTH}


def test_thoughts_come_before_calls(stage, spell, words, thinker):
    scene = stage([spell.bytewise(THOUGHT + words.CALL + words.END)], chat=thinker())
    message = asyncio.run(
        scene.post(scene.open(), messages=words.FIRST, tools=[words.CALCULATOR])
    ).message
    assert (message["content"], message["reasoning"]) == (None, "Three fours.")
    assert message["tool_calls"][0]["function"]["name"] == "calculator"


def test_a_stream_has_the_same_keys_in_its_deltas(stage, spell, words, thinker):
    scene = stage([spell.bytewise(THOUGHT + "Twelve." + words.END)], chat=thinker())
    answer = asyncio.run(scene.post(scene.open(), messages=words.FIRST, stream=True))
    deltas = [event["choices"][0]["delta"] for event in answer.events[:-1]]
    for name in BOTH:
        assert "".join(delta.get(name, "") for delta in deltas) == "Three fours."
    assert "".join(delta.get("content", "") for delta in deltas) == "Twelve."
    assert sum("reasoning" in delta for delta in deltas) > 5


def test_a_thought_that_was_cut_is_no_content(stage, spell, words, thinker):
    cut = spell.canonical("<think>\nThree fours.")
    scene = stage([spell.canonical(THOUGHT)], chat=thinker())
    answer = asyncio.run(scene.post(scene.open(max_tokens=len(cut)), messages=words.FIRST))
    assert answer.message == {"role": "assistant", "content": "", **BOTH}
    assert answer.body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("echoes", [True, False], ids=["echoed", "dropped"])
def test_the_next_turn_goes_on_from_the_tokens_of_the_thought(stage, spell, words, thinker, echoes):
    script = [spell.bytewise(THOUGHT + text + words.END) for text in ("Twelve.", "Sure.")]
    scene = stage(script, chat=thinker())
    session = scene.open()
    first = asyncio.run(scene.post(session, messages=words.FIRST)).message
    echo = first if echoes else {"role": "assistant", "content": first["content"]}
    asked = [*words.FIRST, echo, {"role": "user", "content": "Sure?"}]
    asyncio.run(scene.post(session, messages=asked))
    words.check_exact(scene.gateway.close_session(session).rows, scene.engine.journal)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_openai_client_shows_thoughts(stage, spell, words, thinker, stream):
    scene = stage([spell.bytewise(THOUGHT + "Twelve." + words.END)], chat=thinker())
    session = scene.open()

    async def ask():
        async with scene.gateway.serve() as base_url, AgentClients(base_url) as clients:
            create = clients.for_session(session).chat.completions.create
            if not stream:
                reply = await create(model="tiny", messages=words.FIRST)
                return reply.choices[0].message.model_extra
            chunks = [
                c async for c in await create(model="tiny", messages=words.FIRST, stream=True)
            ]
            extras = [chunk.choices[0].delta.model_extra for chunk in chunks]
            return {name: "".join(extra.get(name, "") for extra in extras) for name in BOTH}

    assert asyncio.run(ask()) == BOTH


def test_a_thought_that_is_echoed_is_rendered_again(thinker):
    said = {"role": "assistant", "content": "Twelve.", **BOTH}
    assert THOUGHT + "Twelve.<|im_end|>" in thinker().render([said], None)


def test_thoughts_stay_where_they_are_if_they_are_to(stage, spell, words, thinker):
    config = GatewayConfig(reasoning_parser="none")
    script = [spell.canonical(THOUGHT + "Twelve." + words.END)]
    scene = stage(script, chat=thinker(), config=config)
    message = asyncio.run(scene.post(scene.open(), messages=words.FIRST)).message
    assert message == {"role": "assistant", "content": THOUGHT + "Twelve."}
