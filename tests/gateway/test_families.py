"""Exact continuation under chat templates of well-known families; transformers is the oracle."""

import asyncio
import json

import pytest
from families import FAMILIES, Family
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rl.config import GatewayConfig
from tests.kit.cases import cases

TOOLS = ("qwen3", "llama3", "glm", "mistral")
TEXT = st.text(st.sampled_from("aZ 09\n\t\"'<>&{}é✓漢"), min_size=1, max_size=12)
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3*4"}}\n</tool_call>'


@pytest.fixture(scope="module", autouse=True)
def transformers():
    """Imported here, so that no single test pays for it."""
    return pytest.importorskip("transformers")


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def _end(name):
    """What a model of the family samples to stop, when a tool answers next or a user speaks."""
    return ("<|observation|>", "<|user|>") if name == "glm" else (FAMILIES[name].eos[0],) * 2


def _scene(words, name, texts, **config):
    """A gateway whose model says `texts`; in the family's tokens, as its tokenizer has them."""
    family = FAMILIES[name]
    said = [family.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    config = {"tool_parser": "hermes"} | config
    return words.Stage(family.chat, said, config=GatewayConfig(**config))


def _parsed(messages):
    """Conversations as transformers wants them: arguments as objects."""
    messages = json.loads(json.dumps(messages))
    for call in (call for m in messages for call in m.get("tool_calls") or ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def test_each_family_is_on_the_rung_its_template_allows(family):
    assert family.chat.rung == family.rung
    assert bool(family.chat.why) == (family.rung != "sentinel")


def test_what_the_probes_find():
    found = {name: family.chat for name, family in FAMILIES.items()}
    assert [name for name in found if found[name].opener_ids] == ["glm"]
    assert [name for name in found if found[name]._fitting.short_ids] == ["mistral"]
    places = {name: found[name]._fitting.systems for name in found}
    assert places == dict.fromkeys(found, "anywhere") | {"mistral": "first", "chatml": "first"}
    assert [name for name in found if found[name]._fitting.tools_as_text] == ["chatml"]
    assert [name for name in found if found[name]._fitting.alternates] == ["mistral"]
    assert not any(chat._fitting.header for chat in found.values())
    assert "a system message" in found["mistral"].why
    assert not any(chat.shape().drops_opening for chat in found.values())
    off = {"enable_thinking": False}
    assert [name for name in found if found[name].shape(off).drops_opening] == ["qwen3"]


CONVERSATION = st.lists(st.tuples(TEXT, TEXT), max_size=3)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama3"])
@settings(max_examples=25, deadline=None)
@given(said=CONVERSATION, last=TEXT, system=st.none() | TEXT)
def test_prompts_and_tails_are_those_of_transformers(name, said, last, system):
    family = FAMILIES[name]
    messages = [] if system is None else [{"role": "system", "content": system}]
    for question, answer in said:
        messages += [{"role": "user", "content": question}]
        messages += [{"role": "assistant", "content": answer}]
    messages += [{"role": "user", "content": last}]
    whole = family.theirs(messages)
    assert family.chat.prompt(messages, None) == whole
    if said:
        tail = family.chat.counted_suffix(messages, 1, None)
        assert whole[-len(tail) :] == tail
    if said and name != "mistral":
        assert family.chat.suffix(messages[-2], messages[-1:], None) == tail


def _tool_episode(words, name, **config):
    answers, speaks = _end(name)
    scene = _scene(words, name, [CALL + answers, "Twelve." + speaks, "Sure." + speaks], **config)
    session = scene.open()
    messages = asyncio.run(scene.play(session, ["12 ✓", "Sure?"], tools=[words.CALCULATOR]))
    return scene, messages, scene.gateway.close_session(session)


@cases("name", TOOLS)
def test_a_tool_episode_is_one_exact_row(words, name):
    scene, messages, record = _tool_episode(words, name, canary_fraction=1)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0
    assert record.counters["canary_turns"] == 2
    assert messages[2]["tool_calls"]


@pytest.mark.parametrize("name", ["qwen3", "glm"])
def test_without_thoughts_it_is_what_transformers_would_feed(words, name):
    scene, messages, record = _tool_episode(words, name, canary_fraction=1)
    theirs = FAMILIES[name].theirs(_parsed(messages[:-1]), [words.CALCULATOR])
    assert list(scene.engine.journal[-1].prompt) == theirs
    assert not any(record.counters[f"canary_{kind}"] for kind in ("thinking", "other", "spelling"))


def test_a_token_that_ends_one_turn_and_opens_the_next_is_there_once(words):
    scene, _, _ = _tool_episode(words, "glm")
    opener = FAMILIES["glm"].tokenizer.token_to_id("<|observation|>")
    first, second = scene.engine.journal[:2]
    assert first.token_ids[-1] == opener
    assert list(second.prompt).count(opener) == 1
    assert list(second.prompt[: len(first.prompt) + len(first.token_ids)]) == [
        *first.prompt,
        *first.token_ids,
    ]


def test_a_turn_that_opens_the_wrong_role_forks(words):
    scene = _scene(words, "glm", [CALL + "<|user|>", "Twelve.<|user|>"])
    session = scene.open()
    messages = asyncio.run(scene.play(session, ["12"], tools=[words.CALCULATOR]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_seam"] == record.counters["forks"] == 1
    theirs = FAMILIES["glm"].theirs(_parsed(messages[:-1]), [words.CALCULATOR])
    assert list(scene.engine.journal[-1].prompt) == theirs


def test_a_cut_turn_is_followed_by_the_next_opener(words):
    family = FAMILIES["glm"]
    cut = words.Say(family.tokenizer.encode("I think").ids, "length")
    scene = words.Stage(family.chat, [cut, family.tokenizer.encode("Yes.<|user|>").ids])
    session = scene.open()
    asyncio.run(scene.play(session, ["Go on."]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


TURNS = st.lists(
    st.tuples(st.lists(st.integers(0, 10_000), max_size=8), st.integers(0, 3), TEXT),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=12, deadline=None)
@given(turns=TURNS)
def test_any_tokens_at_all_are_recorded_exactly(words, name, turns):
    """Whatever is sampled, and whichever token ends it or none does."""
    family = FAMILIES[name]
    size, stops = family.tokenizer.get_vocab_size(), family.chat.stop_token_ids
    said = []
    for number, (ids, end, _) in enumerate(turns):
        own = [number + 10, *(id % size for id in ids if id % size not in stops)]
        closed = [*own, stops[end % len(stops)]]
        said.append(words.Say(closed, "stop") if end else words.Say(own, "length"))
    scene = words.Stage(family.chat, said)
    session = scene.open()
    asyncio.run(scene.play(session, [text for *_, text in turns[:-1]]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=len(record.rows))
    assert record.counters["forks"] == record.counters["forks_seam"] == len(record.rows) - 1
    assert name == "glm" or len(record.rows) == 1


def test_arguments_that_no_template_reads_are_not_probed(words):
    chat = FAMILIES["qwen3"].chat
    shapes = {id(chat.shape({"trace": n, "enable_thinking": False})) for n in range(9)}
    assert shapes == {id(chat.shape({"enable_thinking": False}))}
    assert id(chat.shape()) not in shapes


THOUGHT = "<think>\nTimes.\n</think>\n\n"


def _thinking_episode(words, name="qwen3", **config):
    answers, speaks = _end(name)
    said = [THOUGHT + CALL + answers, THOUGHT + "Twelve." + speaks, THOUGHT + "Sure." + speaks]
    scene = _scene(words, name, said, **config)
    session = scene.open()
    messages = asyncio.run(scene.play(session, ["12", "Sure?"], tools=[words.CALCULATOR]))
    return scene, messages, scene.gateway.close_session(session)


@pytest.mark.parametrize("name", ["qwen3", "glm"])
def test_as_generated_the_model_keeps_its_thoughts(words, name):
    scene, _, record = _thinking_episode(words, name, canary_fraction=1)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0
    assert record.counters["canary_thinking"] >= 1
    shown = FAMILIES[name].chat.text(scene.engine.journal[-1].prompt)
    assert shown.count("Times.") == 2


@pytest.mark.parametrize("name", ["qwen3", "glm"])
def test_as_the_template_has_it_thoughts_go_when_a_user_speaks(words, name):
    scene, messages, record = _thinking_episode(words, name, thinking_history="template")
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_think_drop"] == record.counters["forks"] == 1
    first, second, third = scene.engine.journal
    assert list(second.prompt)[: len(first.prompt)] == list(first.prompt)
    assert list(third.prompt) == FAMILIES[name].theirs(_parsed(messages[:-1]), [words.CALCULATOR])
    assert "Times." not in FAMILIES[name].chat.text(third.prompt)


def test_a_thought_whose_words_are_said_elsewhere_goes_all_the_same(words):
    """Here every word of the thought stands in the user's question too."""
    said = ["<think>\nIt\n</think>\n\n" + CALL + "<|im_end|>", "Twelve.<|im_end|>"]
    scene = _scene(words, "qwen3", said, thinking_history="template")
    session, tools = scene.open(), [words.CALCULATOR]
    first = asyncio.run(scene.post(session, messages=words.FIRST, tools=tools)).message
    assert first["reasoning_content"].strip() == "It"
    spoken = {"role": "user", "content": "It is enough. What is It?"}
    more = [*words.FIRST, first, *words.observe(first, "12"), spoken]
    asyncio.run(scene.post(session, messages=more, tools=tools))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_think_drop"] == record.counters["forks"] == 1


def test_what_a_prompt_rendered_anew_repeats_is_shared(words):
    """The first turn had no thoughts: the row that drops those of the second stands on it."""
    end = "<|im_end|>"
    said = [CALL + end, THOUGHT + CALL + end, "Twelve." + end]
    scene = _scene(words, "qwen3", said, thinking_history="template")
    session, tools = scene.open(), [words.CALCULATOR]
    messages = asyncio.run(scene.play(session, ["12"], tools=tools))
    more = [*messages, *words.observe(messages[-1], "12"), {"role": "user", "content": "So?"}]
    asyncio.run(scene.post(session, messages=more, tools=tools))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_think_drop"] == record.counters["forks"] == 1
    third = session.tree.turns[2]
    assert third.parent is session.tree.turns[1]
    assert third.context.base is session.tree.turns[0]


def test_as_the_template_has_it_an_empty_thought_goes_too(words):
    said = [CALL + "<|im_end|>", "Twelve.<|im_end|>", "Sure.<|im_end|>"]
    scene = _scene(words, "qwen3", said, thinking_history="template")
    session, fields = scene.open(), {"tools": [words.CALCULATOR], "enable_thinking": False}
    messages = asyncio.run(scene.play(session, ["12", "Sure?"], **fields))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_think_drop"] == record.counters["forks"] == 1
    theirs = FAMILIES["qwen3"].theirs(
        _parsed(messages[:-1]), [words.CALCULATOR], enable_thinking=False
    )
    assert list(scene.engine.journal[-1].prompt) == theirs


def test_a_client_need_not_echo_thoughts(words):
    scene = _scene(words, "qwen3", [THOUGHT + CALL + "<|im_end|>", "Twelve.<|im_end|>"])
    session, tools = scene.open(), [words.CALCULATOR]
    said = asyncio.run(scene.post(session, messages=words.FIRST, tools=tools)).message
    echo = {**said, "content": None}
    more = [*words.FIRST, echo, *words.observe(said, "12")]
    asyncio.run(scene.post(session, messages=more, tools=tools))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_thoughts_that_the_template_keeps_fork_nothing(words):
    _, _, record = _tool_episode(words, "qwen3", thinking_history="template")
    assert record.counters["forks"] == 0


def test_template_arguments_reach_the_template_and_part_conversations(words):
    scene = _scene(words, "qwen3", ["Twelve.<|im_end|>"] * 3)
    session = scene.open()
    for kwargs in ({}, {"enable_thinking": False, "unread": 1}):
        fields = {"messages": words.FIRST, "chat_template_kwargs": kwargs}
        asyncio.run(scene.post(session, **fields))
    asyncio.run(scene.post(session, messages=words.FIRST, reasoning_effort="none"))
    prompts = [list(entry.prompt) for entry in scene.engine.journal]
    family = FAMILIES["qwen3"]
    assert prompts[0] == family.theirs(words.FIRST)
    assert prompts[1] == prompts[2] == family.theirs(words.FIRST, enable_thinking=False)
    counters = scene.gateway.close_session(session).counters
    assert (counters["forks_new_root"], counters["forks_sibling"]) == (1, 1)


def test_the_date_of_a_session_stands_still(words):
    end = _end("llama3")[0]
    scene = _scene(words, "llama3", ["One." + end, "Two." + end])
    session = scene.open()
    for text in ("One?", "Two?"):
        asyncio.run(scene.post(session, messages=[{"role": "user", "content": text}]))
    shown = [FAMILIES["llama3"].chat.text(entry.prompt) for entry in scene.engine.journal]
    dates = [text.split("Today Date: ")[1].split("\n")[0] for text in shown]
    assert dates[0] == dates[1]


def test_a_late_system_message_goes_where_the_template_has_a_place(words):
    scene = _scene(words, "chatml", ["Yes.<|im_end|>", "No.<|im_end|>", "So.<|im_end|>"])
    session = scene.open()
    note = {"role": "developer", "content": "Be brief."}
    user = {"role": "user", "content": "And?"}
    said = asyncio.run(scene.post(session, messages=words.FIRST)).message
    more = [*words.FIRST, said, note, user]
    more += [asyncio.run(scene.post(session, messages=more)).message, user]
    asyncio.run(scene.post(session, messages=more))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_template"] == record.counters["forks"] == 1
    gathered = [{"role": "system", "content": "Solve.\n\nBe brief."}, words.FIRST[1], said, user]
    assert list(scene.engine.journal[1].prompt) == FAMILIES["chatml"].theirs(gathered)


def test_a_late_system_message_that_has_a_place_is_no_fork(words):
    scene = _scene(words, "qwen3", ["Yes.<|im_end|>", "No.<|im_end|>"])
    session = scene.open()
    said = asyncio.run(scene.post(session, messages=words.FIRST)).message
    late = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "And?"}]
    asyncio.run(scene.post(session, messages=[*words.FIRST, said, *late]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert list(scene.engine.journal[1].prompt) == FAMILIES["qwen3"].theirs(
        [*words.FIRST, said, *late]
    )


def test_odd_roles_that_only_the_whole_allows_are_cut_from_the_whole(words):
    """`[user, assistant, assistant]`: strict templates refuse the stand-in, and take the whole."""
    source = FAMILIES["chatml"].source.replace(
        "{%- elif m.role not in",
        "{%- elif loop.index == 3 and m.role == 'assistant' and messages | length == 4 %}"
        "{{ raise_exception('odd') }}{%- elif m.role not in",
    )
    family = Family(source)
    said = [family.tokenizer.encode(text + "<|im_end|>").ids for text in ("Yes.", "So.")]
    scene = words.Stage(family.chat, said)
    session = scene.open()
    first = asyncio.run(scene.post(session, messages=words.FIRST)).message
    own = {"role": "assistant", "content": "Hm."}
    more = [*words.FIRST, first, own, {"role": "user", "content": "And?"}]
    asyncio.run(scene.post(session, messages=more))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=1)
    assert list(scene.engine.journal[1].prompt) == family.theirs(more)


def test_what_goes_on_behind_a_row_without_its_thoughts_is_no_fork(words):
    """That row stands on other tokens: the turn with its thoughts has not been gone on from."""
    said = [f"{text}<|im_end|>" for text in (THOUGHT + CALL, "Well.", "Twelve.")]
    scene = _scene(words, "qwen3", said, thinking_history="template")
    session, tools = scene.open(), [words.CALCULATOR]
    first = asyncio.run(scene.post(session, messages=words.FIRST, tools=tools)).message
    talk = [*words.FIRST, first, *words.observe(first, "12")]
    spoken = [*talk, {"role": "user", "content": "So?"}]
    asyncio.run(scene.post(session, messages=spoken, tools=tools))
    asyncio.run(scene.post(session, messages=talk, tools=tools))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_think_drop"] == record.counters["forks"] == 1
