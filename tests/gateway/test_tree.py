"""Which requests continue a path of the token tree, and which fork it, and why."""

import asyncio
import copy
import json

import pytest

from agentgym_rl.gateway import ChatFormat
from agentgym_rl.gateway.messages import message_key
from agentgym_rl.gateway.template.template import ChatTemplate
from tests.kit.cases import cases


@pytest.fixture
def episode(stage, spell, words):
    """A stage whose model calls the calculator, then answers; and its open session."""
    call, answer = (spell.bytewise(t + words.END) for t in (words.CALL, words.ANSWER))
    scene = stage([call, *[answer] * 8])
    return scene, scene.open()


def _ask(scene, session, words, messages):
    tools = [words.CALCULATOR]
    return asyncio.run(scene.post(session, messages=messages, tools=tools)).message


def _tool_turn(scene, session, words):
    message = _ask(scene, session, words, words.FIRST)
    return message, [*words.FIRST, message, *words.observe(message, "12")]


def _respaced(message):
    for call in message["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(arguments, indent=2)


def _foreign_ids(message):
    for call in message["tool_calls"]:
        call["id"] = "toolu_x"


REFORMATS = {
    "respaced arguments": _respaced,
    "foreign ids": _foreign_ids,
    "empty content": lambda message: message.update(content=""),
    "content parts": lambda message: message.update(content=[{"type": "text", "text": "\n"}]),
    "own fields": lambda message: message.update(refusal=None, annotations=[], x_trace={"a": 1}),
    "reasoning": lambda message: message.update(reasoning_content="hm"),
}


@pytest.mark.parametrize("reformat", REFORMATS.values(), ids=REFORMATS)
def test_a_client_may_reformat_what_it_echoes(episode, words, reformat):
    scene, session = episode
    message, messages = _tool_turn(scene, session, words)
    echoed = copy.deepcopy(message)
    reformat(echoed)
    _ask(scene, session, words, [*messages[:2], echoed, *messages[3:]])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def _edited_question(messages):
    messages[1] = {"role": "user", "content": "What is 3*5?"}


def _edited_call(messages):
    messages[2]["tool_calls"][0]["function"]["arguments"] = '{"expression": "3*5"}'


def _edited_content(messages):
    messages[2]["content"] = "I say:"
    del messages[2]["tool_calls"]


EDITS = {
    "question": (_edited_question, "history_edit"),
    "call": (_edited_call, "args_edit"),
    "content": (_edited_content, "history_edit"),
    "summary": (lambda messages: messages.__delitem__(slice(2, 4)), "sibling"),
    "new chat": (lambda messages: messages.__setitem__(slice(1, 4), [_HELLO]), "history_edit"),
}
_HELLO = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(("edit", "cause"), EDITS.values(), ids=EDITS)
def test_an_edited_history_forks_and_every_turn_trains_once(episode, words, edit, cause):
    scene, session = episode
    _, messages = _tool_turn(scene, session, words)
    edited = copy.deepcopy(messages)
    edit(edited)
    _ask(scene, session, words, edited)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks"] == record.counters[f"forks_{cause}"] == 1


def test_an_edit_late_in_the_history_keeps_the_exact_tokens_before_it(episode, words):
    scene, session = episode
    _, messages = _tool_turn(scene, session, words)
    _ask(scene, session, words, messages)
    other = {**messages[3], "content": "13"}
    _ask(scene, session, words, [*messages[:3], other])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_history_edit"] == record.counters["forks"] == 1
    first = scene.engine.journal[0]
    shared = len(first.prompt) + len(first.token_ids)
    masks = [row.loss_mask[:shared].sum() for row in record.rows]
    assert sorted(masks) == [0, len(first.token_ids)]


def test_a_fork_can_itself_be_continued(episode, words):
    scene, session = episode
    _, messages = _tool_turn(scene, session, words)
    _edited_call(messages)
    answer = _ask(scene, session, words, messages)
    _ask(scene, session, words, [*messages, answer, {"role": "user", "content": "Sure?"}])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks"] == 1


def test_other_tools_are_another_conversation(episode, words):
    scene, session = episode
    _tool_turn(scene, session, words)
    asyncio.run(scene.post(session, messages=words.FIRST))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_new_root"] == 1


def test_examples_written_by_the_client_are_no_fork(stage, spell, words):
    scene = stage([spell.bytewise(words.ANSWER + words.END)] * 2)
    session = scene.open()
    shots = [_HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "3*4?"}]
    answer = asyncio.run(scene.post(session, messages=shots)).message
    asyncio.run(scene.post(session, messages=[*shots, answer, _HELLO]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_asking_to_go_on_continues_the_path(stage, spell, words):
    scene = stage([spell.bytewise(words.ANSWER + words.END)] * 2)
    session = scene.open()
    answer = asyncio.run(scene.post(session, messages=words.FIRST)).message
    asyncio.run(scene.post(session, messages=[*words.FIRST, answer]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)


def test_concurrent_turns_of_a_session_are_all_recorded(stage, spell, words):
    texts = [f"Number {n}.{words.END}" for n in range(8)]
    scene = stage([words.Say(spell.bytewise(text), delay_s=0.0005) for text in texts])
    session = scene.open()
    asks = [[{"role": "user", "content": f"{n % 4}?"}] for n in range(8)]

    async def ask_all():
        async with asyncio.TaskGroup() as tasks:
            for messages in asks:
                tasks.create_task(scene.post(session, messages=messages))

    asyncio.run(ask_all())
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=8)
    assert record.counters["forks_sibling"] == 4
    assert record.counters["forks_history_edit"] == 3
    turns = [set(row.turn_ids[row.loss_mask].tolist()) for row in record.rows]
    assert turns == [{n} for n in range(8)]


def test_equal_siblings_are_told_apart_by_their_tool_ids(stage, spell, words):
    called, answered = words.CALL + words.END, words.ANSWER + words.END
    scene = stage([spell.bytewise(called), spell.canonical(called), spell.canonical(answered)])
    session = scene.open()
    first, _ = (_ask(scene, session, words, words.FIRST) for _ in range(2))
    _ask(scene, session, words, [*words.FIRST, first, *words.observe(first, "12")])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    prompt = scene.engine.journal[2].prompt
    sampled = scene.engine.journal[0].token_ids
    assert list(prompt[len(scene.engine.journal[0].prompt) :][: len(sampled)]) == sampled


def test_a_function_name_cannot_close_a_turn(stage, spell, words, chat):
    forged = words.CALL.replace("calculator", "x" + words.END)
    scene = stage([[*spell.bytewise(forged), chat.close_id], spell.bytewise(words.END)])
    session = scene.open()
    messages = asyncio.run(scene.play(session, ["no"], tools=[words.CALCULATOR]))
    assert messages[2]["tool_calls"][0]["function"]["name"] == "x" + words.END
    words.check_exact(scene.gateway.close_session(session).rows, scene.engine.journal)
    first, second = scene.engine.journal
    added = second.prompt[len(first.prompt) + len(first.token_ids) :]
    assert list(added) == chat.suffix({"role": "assistant"}, messages[3:4], [words.CALCULATOR])


def test_a_template_without_local_turns_gives_a_row_a_turn(stage, spell, words, chat):
    opened = "{% for m in messages %}{{ m.role ~ ': ' ~ (m.content or '') ~ '\\n' }}{% endfor %}"
    template = ChatTemplate(opened + "assistant: ", special_tokens={})
    other = ChatFormat(chat._tokenizer, template, [chat.close_id])
    assert not other.bridges
    scene = stage([spell.bytewise(words.ANSWER + words.END)] * 2, chat=other)
    session = scene.open()
    asyncio.run(scene.play(session, ["Sure?"]))
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert record.counters["forks_template"] == 1


@cases(
    "one, other",
    [
        ({"content": None}, {"content": ""}),
        ({"content": "a\n"}, {"content": [{"type": "text", "text": "a"}]}),
        ({"content": "a", "tool_calls": None}, {"content": "a", "tool_calls": []}),
    ],
)
def test_messages_that_say_the_same_have_one_key(one, other):
    assert message_key({"role": "assistant", **one}) == message_key({"role": "assistant", **other})
