"""Engines that fail, clients that leave, deadlines, and sessions closed in the middle."""

import asyncio

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl.config import GatewayConfig
from agentgym_rl.core import ContextLengthError


def _post(scene, session, words, **fields):
    return run_virtual(scene.post(session, messages=words.FIRST, **fields))


@pytest.mark.parametrize("finish", ["abort", None])
def test_a_turn_the_engine_does_not_finish_is_503_and_no_row(stage, spell, words, finish):
    scene = stage([words.Say(spell.bytewise("ab"), finish), spell.bytewise("ab" + words.END)])
    session = scene.open()
    answer = _post(scene, session, words)
    assert (answer.status, answer.headers["x-should-retry"]) == (503, "false")
    assert "after 2 tokens" in session.infra_error
    assert _post(scene, session, words).status == 200
    record = scene.gateway.close_session(session)
    words.check_exact(record.rows, scene.engine.journal[1:])
    assert record.infra_error


def test_an_engine_error_is_the_engines_fault(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab"), fail_after=1)])
    session = scene.open()
    answer = _post(scene, session, words)
    assert answer.status == 503
    assert answer.error["code"] == "engine_failed"
    assert session.infra_error == "scripted failure after 1 tokens"


def test_an_engine_with_less_room_than_was_said_is_an_overflow_too(stage, words):
    def full(prompt):
        raise ContextLengthError("the prompt has 30 tokens, allowed: 20")

    scene = stage(full)
    session = scene.open()
    answer = _post(scene, session, words)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert (session.counters["overflows"], session.infra_error) == (1, "")


def test_lists_of_different_lengths_are_refused(stage, spell, words):
    scene = stage([words.Say(spell.bytewise("ab" + words.END), versions=[0, 0, 0])])
    original = scene.engine._sample

    def short(*arguments):
        delta = original(*arguments)
        return type(delta)(delta.token_ids, [], delta.versions, delta.times_s, "stop")

    scene.engine._sample = short
    assert _post(scene, scene.open(), words).status == 503


def test_a_bug_of_the_gateway_is_not_blamed_on_the_agent(stage, words, caplog):
    def broken(prompt):
        raise ZeroDivisionError

    scene = stage(broken)
    session = scene.open()
    assert _post(scene, session, words).status == 503
    assert "ZeroDivisionError" in session.infra_error
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_late_turn_is_504_and_aborted(stage, spell, words, stream):
    scene = stage([words.Say(spell.bytewise("ab" + words.END), delay_s=5)])
    session = scene.open(turn_timeout_s=0.05)
    answer = _post(scene, session, words, stream=stream)
    assert (answer.status, answer.error["code"]) == (504, "turn_timeout")
    assert scene.engine.journal[0].aborted
    assert "0.05 s" in session.infra_error
    assert session.num_turns == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_aborts_its_request(stage, spell, words, stream):
    config = GatewayConfig(disconnect_grace_s=0)
    scene = stage([words.Say(spell.bytewise("ab" + words.END), delay_s=0.1)], config=config)
    session = scene.open()
    run_virtual(scene.post(session, messages=words.FIRST, stream=stream, hang_up_s=0.03))
    assert scene.engine.journal[0].aborted
    record = scene.gateway.close_session(session)
    assert (record.rows, record.infra_error) == ([], "")
    assert record.counters["undelivered_turns"] == 1


@pytest.mark.parametrize("ending", ["abort", "close_session", "cancel"])
def test_ending_a_session_ends_its_turns(stage, spell, words, ending):
    scene = stage([words.Say(spell.bytewise("ab" + words.END), delay_s=5)])
    session = scene.open()

    async def end_in_the_middle():
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(scene.post(session, messages=words.FIRST))
            await asyncio.sleep(0.02)
            if ending == "abort":
                session.abort()
            elif ending == "close_session":
                scene.gateway.close_session(session)
            else:
                asked.cancel()
        return None if asked.cancelled() else asked.result().status

    assert run_virtual(end_in_the_middle()) == (None if ending == "cancel" else 410)
    assert scene.engine.journal[0].aborted
    assert session.counters["undelivered_turns"] == 1
    assert session.infra_error == ""


def test_closing_is_idempotent_and_the_session_is_forgotten(stage, spell, words):
    scene = stage([spell.bytewise("ab" + words.END)])
    session = scene.open()
    _post(scene, session, words)
    assert scene.gateway.num_sessions == 1
    first, again = (scene.gateway.close_session(session) for _ in range(2))
    assert scene.gateway.num_sessions == 0
    assert first.rows[0].tokens.tolist() == again.rows[0].tokens.tolist()
    assert [m["role"] for m in first.messages] == ["system", "user", "assistant"]


def test_a_failed_turn_leaves_the_tree_as_it_was(stage, spell, words):
    ok = spell.bytewise(words.ANSWER + words.END)
    scene = stage([ok, words.Say(ok, fail_after=1), ok])
    session = scene.open()
    answer = _post(scene, session, words).message
    messages = [*words.FIRST, answer, {"role": "user", "content": "Sure?"}]
    asked = [asyncio.run(scene.post(session, messages=messages)) for _ in range(2)]
    assert [reply.status for reply in asked] == [503, 200]
    record = scene.gateway.close_session(session)
    first, _, last = scene.engine.journal
    words.check_exact(record.rows, [first, last])
    assert record.counters["forks"] == 0
