"""Which sampled turn an assistant message of a client is, when that is not plain."""

import asyncio
import copy

import pytest

from agentgym_rl.config import GatewayConfig
from agentgym_rl.gateway import thoughts_of
from tests.kit.cases import cases

RETRY = {"x-stainless-retry-count": "1"}
AND = {"role": "user", "content": "And?"}


def _ask(scene, session, messages, **fields):
    return asyncio.run(scene.post(session, messages=messages, **fields))


def _after(scene, first, then):
    """Whether the prompt of request `then` stands on the tokens of request `first`."""
    first, then = scene.engine.journal[first], scene.engine.journal[then]
    path = [*first.prompt, *first.token_ids]
    return list(then.prompt[: len(path)]) == path


@pytest.fixture
def twins(stage, spell, words):
    """Two samples of the same text in other tokens, then answers."""
    text = words.ANSWER + words.END
    spelled = [spell.bytewise(text), spell.canonical(text)]
    more = [spell.bytewise(f"{n}." + words.END) for n in range(6)]
    return lambda **options: stage([*spelled, *more], **options)


def test_of_two_that_say_the_same_the_last_is_taken_and_counted(twins, words):
    scene = twins()
    session = scene.open()
    for _ in range(2):
        said = _ask(scene, session, words.FIRST).message
    _ask(scene, session, [*words.FIRST, said, AND])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert _after(scene, 1, 2)
    assert record.counters["ambiguous_echoes"] == 1


def test_one_that_reached_its_client_goes_before_one_that_did_not(stage, spell, words):
    text = words.ANSWER + words.END
    late = words.Say(spell.canonical(text), delay_s=0.01)
    scene = stage([spell.bytewise(text), late, spell.bytewise("So." + words.END)])
    session = scene.open()
    said = _ask(scene, session, words.FIRST).message
    asyncio.run(scene.post(session, messages=words.FIRST, hang_up_s=0.001))
    assert session.num_turns == 2
    _ask(scene, session, [*words.FIRST, said, AND])
    assert _after(scene, 0, 2)


def test_a_conversation_goes_on_from_the_one_it_went_on_from_before(stage, spell, words):
    twin, more = (spell.canonical(text + words.END) for text in (words.ANSWER, "Well."))
    scene = stage([spell.bytewise(t + words.END) for t in (words.ANSWER, "So.")] + [twin, more])
    session = scene.open()
    said = _ask(scene, session, words.FIRST).message
    more = [*words.FIRST, said, AND]
    more += [_ask(scene, session, more).message, AND]
    _ask(scene, session, words.FIRST)  # a twin of the first, and later
    _ask(scene, session, more)
    record = scene.gateway.close_session(session)
    assert _after(scene, 0, 3)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)


def test_thoughts_tell_apart_what_says_the_same(stage, spell, words):
    texts = [f"<think>{thought}</think>Yes.{words.END}" for thought in "ab"]
    scene = stage([spell.bytewise(text) for text in (*texts, "So." + words.END)])
    session = scene.open()
    first = _ask(scene, session, words.FIRST).message
    _ask(scene, session, words.FIRST)
    _ask(scene, session, [*words.FIRST, first, AND])
    assert _after(scene, 0, 2)
    assert scene.gateway.close_session(session).counters["ambiguous_echoes"] == 0


@pytest.mark.parametrize("echo", ["Yes.", "<think>\nhm</think>\n\nYes.\n"])
def test_thoughts_may_be_left_out_or_put_back(stage, spell, words, echo):
    scene = stage([spell.bytewise(text + words.END) for text in ("<think>hm</think>Yes.", "So.")])
    session = scene.open()
    _ask(scene, session, words.FIRST)
    _ask(scene, session, [*words.FIRST, {"role": "assistant", "content": echo}, AND])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)


@pytest.mark.parametrize(("policy", "num_rows"), [("fork", 2), ("trust", 1)])
def test_a_rewritten_call_forks_or_is_trusted(stage, spell, words, policy, num_rows):
    said = [words.CALL + words.END, words.ANSWER + words.END]
    config = GatewayConfig(edited_calls=policy)
    scene = stage([spell.bytewise(text) for text in said], config=config)
    session, tools = scene.open(), [words.CALCULATOR]
    call = _ask(scene, session, words.FIRST, tools=tools).message
    edited = copy.deepcopy(call)
    edited["tool_calls"][0]["function"]["arguments"] = '{"expression": "3 * 4"}'
    _ask(scene, session, [*words.FIRST, edited, *words.observe(call, "12")], tools=tools)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=num_rows)
    assert record.counters["trusted_edits"] == (policy == "trust")
    assert record.counters["forks_args_edit"] == record.counters["forks"] == num_rows - 1


def test_an_edit_late_in_a_conversation_keeps_what_was_sampled_before(stage, spell, words):
    texts = ["One.", "Two.", "Three."]
    scene = stage([spell.bytewise(text + words.END) for text in texts])
    session = scene.open()
    messages = asyncio.run(scene.play(session, ["And?"]))
    edited = [*messages[:4], {"role": "assistant", "content": "Too."}, AND]
    _ask(scene, session, edited)
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert _after(scene, 0, 2)
    assert record.counters["forks_history_edit"] == 1


def test_messages_that_a_client_puts_in_are_no_fork(stage, spell, words):
    scene = stage([spell.bytewise(text + words.END) for text in ("One.", "Two.")])
    session = scene.open()
    said = _ask(scene, session, words.FIRST).message
    own = {"role": "assistant", "content": "Let me check."}
    _ask(scene, session, [*words.FIRST, said, own, AND])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal)
    assert record.counters["forks"] == 0


def test_a_summary_forks_where_the_history_changed(stage, spell, words):
    scene = stage([spell.bytewise(f"{n}." + words.END) for n in range(4)])
    session = scene.open()
    messages = asyncio.run(scene.play(session, ["And?", "Then?"]))
    summary = {"role": "user", "content": "So far: 0, 1, 2."}
    _ask(scene, session, [*messages[:3], summary])
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal, num_rows=2)
    assert _after(scene, 0, 3)
    assert record.counters["forks_history_edit"] == record.counters["forks"] == 1


def test_a_retry_that_is_sampled_again_says_so(stage, spell, words):
    scene = stage([spell.bytewise(f"{n}." + words.END) for n in range(2)])
    session = scene.open()
    _ask(scene, session, words.FIRST)
    _ask(scene, session, words.FIRST, seed=1, headers=RETRY)
    record = scene.gateway.close_session(session)
    assert record.counters["forks_retry_sibling"] == record.counters["forks"] == 1


@cases(
    "message, thought",
    [
        ({"content": "<think>\nhm\n</think>\nYes."}, "hm"),
        ({"content": "Yes.", "reasoning_content": "hm "}, "hm"),
        ({"content": "Yes.", "reasoning": "hm"}, "hm"),
        ({"content": "hm</think>Yes."}, "hm"),
        ({"content": None}, ""),
    ],
)
def test_thoughts_are_found_wherever_they_stand(message, thought):
    assert thoughts_of({"role": "assistant", **message}) == thought
