"""Requests sent again, clients that leave, replies nobody got, and too many at once."""

import asyncio
import json

import pytest
from arl_plan.clock import run_virtual

from agentgym_rl.config import GatewayConfig
from agentgym_rl.gateway.retries_and_hangups import ClientGone, Exchange, Exchanges, RequestIdentity

RETRY = {"x-stainless-retry-count": "1"}


def _rows(scene, session):
    return scene.gateway.close_session(session)


@pytest.fixture
def slow(stage, spell, words):
    """A gateway whose every reply takes 0.15 s, which are virtual."""
    say = words.Say(spell.bytewise("ab" + words.END), delay_s=0.05)
    return stage(lambda _: say, config=GatewayConfig(disconnect_grace_s=0.3))


def test_a_request_sent_again_joins_the_reply_being_made(slow, words):
    session = slow.open()

    async def ask_twice():
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(slow.post(session, messages=words.FIRST, hang_up_s=0.03))
            await asyncio.sleep(0.06)
            again = tasks.create_task(slow.post(session, messages=words.FIRST, headers=RETRY))
        return first.result(), again.result()

    _, again = run_virtual(ask_twice())
    assert again.message["content"] == "ab"
    assert len(slow.engine.journal) == 1
    record = _rows(slow, session)
    words.check_exact(record.rows, slow.engine.journal)
    assert record.counters["joined_retries"] == 1
    assert record.counters["lost_replies"] == 0


def test_a_retry_that_has_the_reply_may_close_the_session_at_once(slow, words):
    session, records = slow.open(), []
    body = json.dumps({"model": "m", "messages": words.FIRST}).encode()

    async def ask_again():
        loop = asyncio.get_running_loop()

        async def send(message):
            if message["type"] == "http.response.body" and not message.get("more_body"):
                loop.call_soon(lambda: records.append(_rows(slow, session)))

        pending = [{"type": "http.request", "body": body}]

        async def receive():
            return pending.pop() if pending else await asyncio.sleep(60)

        headers = {"authorization": f"Bearer {session.key}", **RETRY}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": raw}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(slow.post(session, body, hang_up_s=0.03))
            await asyncio.sleep(0.06)
            tasks.create_task(slow.gateway.app(scope, receive, send))

    run_virtual(ask_again())
    assert records[0].counters["joined_retries"] == 1
    words.check_exact(records[0].rows, slow.engine.journal)


async def _hung_up():
    return {"type": "http.disconnect"}


def test_a_retry_after_the_grace_is_not_given_a_reply_that_is_being_given_up():
    first, again = (
        RequestIdentity(b"1", retry, "", may_come_again=True) for retry in (False, True)
    )
    exchanges = Exchanges()
    exchange = exchanges.open(first, _hung_up)
    assert exchanges.earlier(again) is exchange
    with pytest.raises(ClientGone):
        asyncio.run(exchange.outlive(_hung_up, grace_s=0.01))
    assert exchanges.earlier(again) is None


def test_a_retry_that_comes_just_as_the_grace_is_up_is_waited_for():
    exchange = Exchange(RequestIdentity(b"1", False, "", may_come_again=True), _hung_up)

    def come():
        exchange.num_followers += 1

    async def main():
        loop, late_s = asyncio.get_running_loop(), 0.0
        clock = loop.time
        loop.time = lambda: clock() + late_s
        async with asyncio.timeout(3000), asyncio.TaskGroup() as tasks:
            tasks.create_task(exchange.outlive(_hung_up, grace_s=300))
            await asyncio.sleep(0.01)
            loop.call_later(600, come)
            late_s = 1000  # both are due at once, the end of the grace first
            await asyncio.sleep(0.01)
            late_s = 4000

    with pytest.raises(TimeoutError):
        asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_sent_again_gets_the_reply_that_was_made(slow, words, stream):
    session = slow.open()
    fields = {"messages": words.FIRST, "stream": stream}
    first = run_virtual(slow.post(session, **fields))
    again = run_virtual(slow.post(session, headers=RETRY, **fields))
    assert again.data == first.data
    assert first.headers.pop("x-request-id") != again.headers.pop("x-request-id")
    assert again.headers == first.headers
    assert len(slow.engine.journal) == 1


def test_the_same_messages_unmarked_are_another_sample(slow, words):
    session = slow.open()
    for _ in range(2):
        run_virtual(slow.post(session, messages=words.FIRST))
    assert len(slow.engine.journal) == 2
    assert _rows(slow, session).counters["forks_sibling"] == 1


def test_a_marked_request_that_is_not_the_same_is_sampled(slow, words):
    session = slow.open()
    run_virtual(slow.post(session, messages=words.FIRST))
    run_virtual(slow.post(session, messages=words.FIRST, temperature=0.5, headers=RETRY))
    assert len(slow.engine.journal) == 2


def test_a_retry_never_gets_the_reply_of_another_session(slow, words):
    run_virtual(slow.post(slow.open(), messages=words.FIRST))
    run_virtual(slow.post(slow.open(), messages=words.FIRST, headers=RETRY))
    assert len(slow.engine.journal) == 2


def test_a_failed_reply_is_asked_for_anew(stage, spell, words):
    good = spell.bytewise("ab" + words.END)
    scene = stage([words.Say(good, fail_after=1), good])
    session = scene.open()
    statuses = [
        run_virtual(scene.post(session, messages=words.FIRST, headers=headers)).status
        for headers in ({}, RETRY)
    ]
    assert statuses == [503, 200]


def test_an_idempotency_key_names_one_request(slow, words):
    session, headers = slow.open(), {"idempotency-key": "k1"}
    first = run_virtual(slow.post(session, messages=words.FIRST, headers=headers))
    again = run_virtual(slow.post(session, messages=words.FIRST, headers=headers))
    other = run_virtual(slow.post(session, messages=words.FIRST, seed=1, headers=headers))
    assert again.data == first.data
    assert other.status == 400
    assert "idempotency-key" in other.error["message"]


def test_a_client_that_does_not_come_back_costs_no_more_than_the_grace(stage, spell, words):
    say = words.Say(spell.bytewise("a" * 50 + words.END), delay_s=0.05)
    scene = stage([say], config=GatewayConfig(disconnect_grace_s=0.1))
    session = scene.open()
    run_virtual(scene.post(session, messages=words.FIRST, hang_up_s=0.01))
    assert scene.engine.journal[0].aborted
    assert _rows(scene, session).counters["undelivered_turns"] == 1


def test_a_client_that_never_asks_again_is_not_waited_for(slow, words):
    session, headers = slow.open(), {"x-arl-no-retries": "true"}
    run_virtual(slow.post(session, messages=words.FIRST, headers=headers, hang_up_s=0.01))
    assert slow.engine.journal[0].aborted


def test_a_reply_that_nobody_got_does_not_train(slow, words):
    session = slow.open()
    run_virtual(slow.post(session, messages=words.FIRST, hang_up_s=0.03))
    kept = run_virtual(slow.post(session, messages=words.FIRST)).message
    assert kept["content"] == "ab"
    record = _rows(slow, session)
    words.check_exact(record.rows, slow.engine.journal[1:])
    assert (record.counters["lost_replies"], record.num_turns) == (1, 2)


def test_too_many_at_once_are_told_to_ask_again(stage, spell, words):
    say = words.Say(spell.bytewise("ab" + words.END), delay_s=0.05)
    scene = stage(lambda _: say, config=GatewayConfig(max_session_requests=2))
    session, other = scene.open(), scene.open()

    async def ask():
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(scene.post(who, messages=words.FIRST, temperature=number / 9))
                for number, who in enumerate([session] * 3 + [other])
            ]
        return [task.result() for task in asked]

    answers = run_virtual(ask())
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 429]
    refused = next(answer for answer in answers if answer.status == 429)
    assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("1", "true")
    assert "max_session_requests" in refused.error["message"]
    assert session.infra_error == ""


def test_a_session_has_a_last_turn(stage, spell, words):
    scene = stage(
        lambda _: spell.bytewise("ab" + words.END), config=GatewayConfig(max_session_turns=2)
    )
    session = scene.open()
    answers = [run_virtual(scene.post(session, messages=words.FIRST)) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 403]
    assert answers[2].headers["x-should-retry"] == "false"


def test_a_stream_with_nothing_to_say_says_that_it_is_there(stage, spell, words):
    say = words.Say(spell.bytewise("ab" + words.END), delay_s=0.1)
    scene = stage([say], config=GatewayConfig(keep_alive_s=0.03))
    answer = run_virtual(scene.post(scene.open(), messages=words.FIRST, stream=True))
    assert answer.data.startswith(b": still sampling\n: still sampling\n")
    assert b"\n\n: " in answer.data
    assert answer.data.endswith(b"data: [DONE]\n\n")


def test_a_key_in_the_path_opens_its_session(slow, words):
    session = slow.open()
    body = b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}'
    path = f"/s/{session.key}/v1/chat/completions"
    assert run_virtual(slow.request("POST", path, body)).status == 200
    assert run_virtual(slow.request("POST", path[:-1], body)).status == 404
    wrong = path.replace(session.key, session.key + "0")
    assert run_virtual(slow.request("POST", wrong, body)).status == 401
